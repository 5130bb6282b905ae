"""What attention is handed, and which kernel that leads to: in a call of the model, and in a compiler's trace.

Libraries build a mask while something traces and none when nothing does. So the two are looked at apart: the calls of
`scaled_dot_product_attention` as the model makes them, and the operators into which torch takes a captured node apart
for its shapes, as a compiler's trace does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autokernel.rewrite import Mask
from autokernel.rewrite.masks import SDPA, arguments
from autokernel.rewrite.relayout import fake_mode

Traced = Literal["flash", "cudnn", "efficient", "unfused"]
_FUSED: dict[str, Traced] = {"_flash_": "flash", "_cudnn_": "cudnn", "_efficient_": "efficient"}
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # by position; the rest by keyword


def eager_masks(call: Callable[[], object]) -> tuple[Mask, ...]:
    """What each attention of one call is handed, in order. Runs `call` once, without gradients."""
    found: list[Mask] = []
    with torch.no_grad(), _Calls(found):
        call()
    return tuple(found)


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[Mask]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
            self.found.append(_handed(given.get("attn_mask"), bool(given.get("is_causal"))))
        return func(*args, **kwargs)


def _handed(mask: Tensor | None, causal: bool) -> Mask:
    if mask is None:
        return "causal" if causal else "none"
    return "given"


def traced_as(node: fx.Node) -> Traced | None:
    """The kernel of an attention node in a compiler's trace; None where this torch can't say (of a GPU it doesn't see).

    The node is run on its fake tensors: what it is taken apart into depends on their shapes, strides and device only.
    """
    given = {name: _fake(value) for name, value in arguments(node).items()}
    seen: list[str] = []
    try:
        with torch.no_grad(), fake_mode(node), _Operators(seen):
            SDPA(**given)
    except RuntimeError:
        return None
    return next((kind for name in seen for part, kind in _FUSED.items() if part in name), "unfused")


def _fake(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, fx.Node) else value


class _Operators(TorchDispatchMode):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))
