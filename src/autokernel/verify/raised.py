"""A model run in float64, with every cast and `dtype=` inside it raised too.

`model.double()` alone is no reference: code that calls `.float()` or `type_as` inside goes back to the rounding it is
meant to be free of. Here a dispatch mode sees every ATen operator, raises what is not float64 yet, and leaves integer
and bool tensors alone.

With `wobble`, each floating result is multiplied by 1 + u·ξ, ξ uniform in [−1, 1]: how far the outputs then move is
what rounding alone may do to this model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_LOW = (torch.float32, torch.float16, torch.bfloat16)

# unit roundoff: half the distance from 1 to the next number
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-11}


def raise_tensor(value: Any) -> Any:
    """A floating tensor in float64; a floating dtype as float64; anything else as it is."""
    if isinstance(value, Tensor) and value.dtype in _LOW:
        return value.double()
    if isinstance(value, torch.dtype) and value in _LOW:
        return torch.float64
    return value


def raised_model(model: Callable[..., Any]) -> Callable[..., Any]:
    """A deep copy in float64 when the model is a Module; a plain function as it is (its constants rise on use)."""
    return copy.deepcopy(model).double() if isinstance(model, nn.Module) else model


@contextmanager
def raised(wobble: float = 0.0, seed: int = 0, *, plain_attention: bool = False) -> Iterator[None]:
    """Inside, every operator computes in float64; `wobble` is the u above.

    plain_attention: attention is written out as products and a softmax; a GPU's fused kernels have no float64.
    """
    attention = sdpa_kernel(SDPBackend.MATH) if plain_attention else nullcontext()
    with torch.no_grad(), attention, _Raised(wobble, seed):
        yield


class _Raised(TorchDispatchMode):
    def __init__(self, wobble: float, seed: int) -> None:
        super().__init__()
        self.wobble = wobble
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return self._mutating(func, args, kwargs)
        result = func(*tree_map(raise_tensor, args), **tree_map(raise_tensor, kwargs))
        if _aliases(func):
            return tree_map(raise_tensor, result)
        return tree_map(lambda value: self._moved(raise_tensor(value)), result)

    def _mutating(self, func: Any, args: Any, kwargs: Any) -> Any:
        """In-place and out= operators: computed on raised arguments, then written back to those that were low."""
        low: list[tuple[Tensor, Tensor]] = []

        def rise(value: Any) -> Any:
            higher = raise_tensor(value)
            if isinstance(value, Tensor) and higher is not value:
                low.append((value, higher))
            return higher

        result = func(*tree_map(rise, args), **tree_map(rise, kwargs))
        for original, higher in low:
            original.copy_(higher)
        back = {id(higher): original for original, higher in low}
        return tree_map(lambda value: back.get(id(value), value), result)

    def _moved(self, value: Any) -> Any:
        if not self.wobble or not isinstance(value, Tensor) or value.dtype is not torch.float64:
            return value
        generator = self.generators.get(value.device)
        if generator is None:
            generator = self.generators[value.device] = torch.Generator(value.device).manual_seed(self.seed)
        noise = torch.rand(value.shape, generator=generator, dtype=torch.float64, device=value.device)
        # (2·r − 1)·u + 1, in the memory of r: some of these tensors are among the largest that fit
        return value * noise.mul_(2 * self.wobble).add_(1 - self.wobble)


def _aliases(func: Any) -> bool:
    return any(result.alias_info is not None for result in func._schema.returns)
