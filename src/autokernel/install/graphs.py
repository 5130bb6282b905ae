"""A model replayed as a CUDA graph without a compiler: the baseline "eager + CUDA graphs", which a user may be given.

One graph per layout of the inputs. Tensors are copied into the graph's own inputs; everything else must be equal to
what was captured. Refused, each with its reason: no CUDA, tensors elsewhere, objects among the inputs that hold state,
inputs that the model changes, values read back to the host, and whatever else CUDA refuses to capture. Parameters and
buffers that were replaced or moved since are seen, and the model is captured again. Not seen: state on the host that
the model keeps from call to call; `verify` compares a replay with eager on values that were not captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autokernel.errors import NotGraphable
from autokernel.profile.state import keeping_buffers, same

_WARM = 2  # libraries plan and allocate on first calls, which a capture does not allow
_PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class _Graph:
    """A captured call. `held`: parameters and buffers by place, whose addresses are part of the graph."""

    graph: Any
    layout: tuple[Any, ...]
    spec: Any
    inputs: tuple[Tensor, ...]
    outputs: Any
    held: tuple[tuple[dict[str, Any], str, Tensor, int], ...]

    def current(self) -> bool:
        return all(place.get(name) is tensor and tensor.data_ptr() == at for place, name, tensor, at in self.held)


class EagerGraphs:
    """`call`, replayed. `owner` holds the parameters and buffers.

    keep_outputs: each call returns copies; otherwise outputs are overwritten by the next call, as under torch.compile
    with CUDA graphs. Calls raise NotGraphable where the call can't be a graph.
    """

    def __init__(self, call: Callable[..., Any], *, owner: Any = None, keep_outputs: bool = False) -> None:
        self._call = call
        self._owner = owner
        self._keep = keep_outputs
        self._graphs: list[_Graph] = []
        self._refused: list[tuple[tuple[Any, ...], Any, NotGraphable]] = []  # each is tried once
        self._lock = threading.Lock()  # one set of inputs: two threads may not fill it at once

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        layout = (getattr(self._owner, "training", False), *map(_layout, leaves))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        with self._lock:
            graph = self._find(layout, spec)
            if graph is None:
                graph = self._captured(leaves, layout, spec)
            for mine, given in zip(graph.inputs, tensors, strict=True):
                mine.copy_(given)
            graph.graph.replay()
            return pytree.tree_map(_copied, graph.outputs) if self._keep else graph.outputs

    def _find(self, layout: tuple[Any, ...], spec: Any) -> _Graph | None:
        for graph in self._graphs:
            if graph.layout == layout and graph.spec == spec:
                if graph.current():
                    return graph
                self._graphs.remove(graph)
                return None
        return None

    def _captured(self, leaves: Sequence[Any], layout: tuple[Any, ...], spec: Any) -> _Graph:
        for refused_layout, refused_spec, error in self._refused:
            if refused_layout == layout and refused_spec == spec:
                raise error
        try:
            graph = self._capture(leaves, layout, spec)
        except NotGraphable as error:
            self._refused.append((layout, spec, NotGraphable(**error.values)))
            raise
        self._graphs.append(graph)
        return graph

    def _capture(self, leaves: Sequence[Any], layout: tuple[Any, ...], spec: Any) -> _Graph:
        _refuse(leaves)
        # tensors made in inference mode could not be written to by a later call outside of it
        with torch.inference_mode(False):
            fixed = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        inputs = tuple(leaf for leaf in fixed if isinstance(leaf, Tensor))
        args, kwargs = pytree.tree_unflatten(fixed, spec)
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.cuda.device(inputs[0].device),
            keeping_buffers(self._owner),
        ):
            _warm_up(lambda: self._call(*args, **kwargs))
            given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            if not all(same(mine, theirs) for mine, theirs in zip(inputs, given, strict=True)):
                raise NotGraphable(detail="it changes its inputs")
            graph = torch.cuda.CUDAGraph()
            outputs = _record(graph, lambda: self._call(*args, **kwargs))
        _refuse_opaque(pytree.tree_leaves(outputs), "an output")
        return _Graph(graph, layout, spec, inputs, outputs, _held(self._owner))


def _warm_up(call: Callable[[], Any]) -> None:
    """On a stream of its own, as the capture will be; the last time with every wait for the device an error.

    A capture that fails half-way leaves PyTorch's random generator unusable, so what would fail should not begin.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            call()
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotGraphable(detail=f"it reads values back from the device ({_first_line(error)})") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)
    current.wait_stream(side)


def _record(graph: Any, call: Callable[[], Any]) -> Any:
    """The outputs of `call`, captured in `graph`. Raises NotGraphable."""
    # the outer context: where a capture fails, torch.cuda.graph leaves its own stream as the current one
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            # other threads (compiler pools) may use the device meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                return call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # CUDA's word for what it can't capture
            raise NotGraphable(detail=f"CUDA can't capture it ({_first_line(error.__context__ or error)})") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _refuse(leaves: Sequence[Any]) -> None:
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    elsewhere = sorted({leaf.device.type for leaf in tensors} - {"cuda"})
    if elsewhere:
        raise NotGraphable(detail=f"an input is on {elsewhere[0]}")
    if not tensors:
        raise NotGraphable(detail="it has no tensor among its inputs")
    _refuse_opaque(leaves, "an input")


def _refuse_opaque(leaves: Sequence[Any], what: str) -> None:
    """An object that PyTorch can't take apart may hold tensors that nobody copies."""
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            raise NotGraphable(detail=f"{what} is a {type(leaf).__name__}, which can't be taken apart")


def _layout(leaf: Any) -> Any:
    """What must be equal for a captured graph to serve a call; values of tensors may differ."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.device, leaf.shape, leaf.stride()
    return type(leaf), leaf


def _held(owner: Any) -> tuple[tuple[dict[str, Any], str, Tensor, int], ...]:
    if not isinstance(owner, nn.Module):
        return ()
    places: list[dict[str, Any]] = [
        place for module in owner.modules() for place in (module._parameters, module._buffers)
    ]
    return tuple(
        (place, name, tensor, tensor.data_ptr())
        for place in places
        for name, tensor in place.items()
        if isinstance(tensor, Tensor)
    )


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
