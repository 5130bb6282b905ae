"""What each captured operator is to the partitioner, read off its lowered form; never from a list of names.

* view: only re-indexes (or does nothing); free, copied into every region that looks through it
* constant: makes a tensor out of nothing (`full`, `arange`); free too
* fusable: pointwise operators, reductions over trailing dims, index maps that move data, the target gather
* opaque: anything else that computes; a region of its own
* barrier: not a computation (grad mode, autocast, in-place write-back, higher-order operators); nothing fuses across
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from autokernel.graph.emitter import frozen, value_of
from autokernel.graph.lower import lower
from autokernel.graph.opset import is_pointwise, kind_of

aten = torch.ops.aten
_FREE_MAPS = frozenset({aten.reshape.default, aten.permute.default, aten.expand.default, aten.slice.Tensor})
_KEEPS_ROWS = frozenset({aten.reshape.default, aten.expand.default})


@dataclass(frozen=True)
class Facts:
    """`reductions`: (rows, reduced elements) of each; `aligned`: element i of a row only needs elements of that row,
    found without a permutation, slice or concatenation."""

    kind: Literal["view", "constant", "fusable", "opaque", "barrier"]
    reductions: frozenset[tuple[int, int]] = frozenset()
    aligned: bool = True
    gathers: bool = False
    reason: str = ""


_POINTWISE = Facts("fusable")
_OPAQUE_OUTPUT = Facts("opaque", reason="one of several results")
_RESULT = Facts("fusable")


def facts_of(node: fx.Node) -> Facts:
    """Facts of one node of a captured graph; computed once per operator, arguments and layout of its inputs."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        whole = facts_of(source)
        return whole if whole.kind == "view" else _RESULT if whole.kind == "fusable" else _OPAQUE_OUTPUT
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return Facts("barrier", reason=f"{node.target} is not a functional operator")
    if any(argument.op == "get_attr" for argument in node.all_input_nodes):
        return Facts("barrier", reason=f"{node.target} takes a part of the graph")
    if not _tensors(node.meta.get("val")):
        return Facts("barrier", reason=f"{node.target} does not return tensors")
    if is_pointwise(node.target) and node.all_input_nodes:
        return _POINTWISE
    return _lowered_facts(_Alone(node))


def _tensors(val: Any) -> bool:
    if isinstance(val, (tuple, list)):
        return any(isinstance(item, Tensor) for item in val)
    return isinstance(val, Tensor)


def enters_autocast(node: fx.Node) -> bool:
    return node.target is torch.amp.autocast_mode._enter_autocast


def leaves_autocast(node: fx.Node) -> bool:
    return node.target is torch.amp.autocast_mode._exit_autocast


class _Alone:
    """A node on its own, compared by operator, constants and the layout of its inputs."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.used = used_results(node)
        self.key = (signature([node]), self.used)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alone) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def function(self) -> Callable[..., Any]:
        """The node as a function of its inputs; of several results those that are used."""
        graph = fx.Graph()
        env = {argument: graph.placeholder(argument.name) for argument in self.node.all_input_nodes}
        graph.output((graph.node_copy(self.node, lambda n: env[n]),))
        module, used = fx.GraphModule({}, graph), self.used

        def run(*args: Any) -> Any:
            (out,) = module(*args)
            if not isinstance(out, (tuple, list)):
                return out
            return tuple(item for position, item in enumerate(out) if item is not None and position in used)

        return run


def used_results(node: fx.Node) -> tuple[int, ...]:
    """Which results of an operator with several are read; () for one with a single result."""
    if isinstance(node.meta.get("val"), Tensor):
        return ()
    positions = [user.args[1] for user in node.users if user.target is operator.getitem]
    return tuple(sorted({position for position in positions if isinstance(position, int)}))


@functools.lru_cache(maxsize=4096)
def _lowered_facts(alone: _Alone) -> Facts:
    node = alone.node
    vals = [value_of(argument) for argument in node.all_input_nodes]
    if not all(isinstance(val, Tensor) for val in vals):
        return Facts("barrier", reason=f"{node.target} takes something else than tensors")
    try:
        lowered = lower(alone.function(), vals)
    except Exception as error:  # what can't be lowered has no task: it stays in the graph, outside all regions
        first = next(iter(str(error).strip().splitlines()), "")
        return Facts("barrier", reason=f"{node.target}: {type(error).__name__}: {first}")
    return _read(lowered, node)


def _read(lowered: fx.GraphModule, node: fx.Node) -> Facts:
    calls = [call for call in lowered.graph.nodes if call.op == "call_function"]
    opaque = [call for call in calls if kind_of(call.target) == "opaque"]
    if opaque:
        return Facts("opaque", reason=f"{opaque[0].target} is neither pointwise, reduction nor index map")
    trivial = [call for call in calls if call.target in _FREE_MAPS or _copies_input(call, node)]
    if len(trivial) == len(calls) and node.all_input_nodes:
        return Facts("view")
    if not node.all_input_nodes and all(kind_of(call.target) in ("creation", "index") for call in calls):
        return Facts("constant")
    reductions = _reductions(calls)
    if reductions is None:
        return Facts("opaque", reason=f"{node.target} reduces over dims that are not the last ones")
    moving = [call for call in calls if kind_of(call.target) == "index" and call.target not in _KEEPS_ROWS]
    gathers = any(kind_of(call.target) == "gather" for call in calls)
    aligned = all(call.target is aten.clone.default for call in moving)
    return Facts("fusable", frozenset(reductions), aligned, gathers)


def _reductions(calls: Sequence[fx.Node]) -> set[tuple[int, int]] | None:
    """(rows, length) of all reductions; None when one of them is not over the last dims."""
    found = set()
    for call in calls:
        if kind_of(call.target) == "reduction":
            rows = trailing(value_of(call.all_input_nodes[0]).shape, _dims(call))
            if rows is None:
                return None
            found.add(rows)
    return found


def row_space(reductions: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """The one (rows, length) that all reductions share, a last reduction over the rows themselves aside; else None."""
    spaces = sorted(reductions, reverse=True)
    if len(spaces) == 2 and spaces[1] == (1, spaces[0][0]):
        spaces.pop()
    return spaces[0] if len(spaces) == 1 else None


def lowered_kind(lowered: fx.GraphModule) -> Literal["pointwise", "row", "other"]:
    """The kind of region that a whole lowered graph is."""
    calls = [call for call in lowered.graph.nodes if call.op == "call_function"]
    reductions = _reductions(calls)
    if reductions is None or any(kind_of(call.target) == "opaque" for call in calls):
        return "other"
    if not reductions:
        return "other" if any(kind_of(call.target) == "gather" for call in calls) else "pointwise"
    return "row" if row_space(reductions) is not None else "other"


def _copies_input(call: fx.Node, node: fx.Node) -> bool:
    """Lowering writes an output that is its input as a copy; for an operator that aliases, that is no work."""
    if call.target is not aten.clone.default:
        return False
    source = call.args[0]
    assert isinstance(source, fx.Node)
    returns = node.target._schema.returns  # type: ignore[union-attr]
    identity = source.op == "placeholder" and not call.kwargs
    explicit = node.target in (aten.clone.default, aten.contiguous.default)
    return identity and not explicit and bool(returns)


def _dims(call: fx.Node) -> Sequence[int]:
    dims = call.args[1]
    return [dims] if isinstance(dims, int) else dims  # type: ignore[return-value]


def trailing(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int] | None:
    """(rows, reduced elements) if `dims` are the last dims of `shape` (extents of one do not count); else None."""
    wide = [dim for dim, size in enumerate(shape) if size != 1]
    reduced = [dim for dim in wide if dim in dims]
    if reduced and reduced != wide[-len(reduced) :]:
        return None
    count = math.prod(shape[dim] for dim in reduced)
    return math.prod(shape) // max(count, 1), count


def row_keeping(node: fx.Node) -> bool:
    """True for a view that keeps the order of elements or repeats them by broadcasting; False: it permutes or cuts."""
    shapes = [value_of(argument) for argument in node.all_input_nodes]
    out = node.meta.get("val")
    if len(shapes) != 1 or not isinstance(out, Tensor) or not isinstance(shapes[0], Tensor):
        return False
    lowered = _lowered_targets(_Alone(node))
    return all(target in _KEEPS_ROWS or target is aten.clone.default for target in lowered)


@functools.lru_cache(maxsize=4096)
def _lowered_targets(alone: _Alone) -> tuple[Any, ...]:
    lowered = lower(alone.function(), [value_of(argument) for argument in alone.node.all_input_nodes])
    return tuple(call.target for call in lowered.graph.nodes if call.op == "call_function")


def layout(val: Any) -> Any:
    """Shape, stride, dtype, device of a value, hashable."""
    if isinstance(val, Tensor):
        return (tuple(val.shape), val.stride(), str(val.dtype), val.device.type)
    if isinstance(val, (tuple, list)):
        return tuple(layout(item) for item in val)
    return frozen(val)


def signature(nodes: Sequence[fx.Node]) -> Any:
    """A hashable key of nodes in order: operators, constants, connections, layout of everything from outside."""
    numbers: dict[fx.Node, Any] = {}
    outside: list[Any] = []
    own = set(nodes)

    def number(node: fx.Node) -> Any:
        if node not in numbers:
            assert node not in own
            numbers[node] = ("in", len(outside))
            outside.append(layout(node.meta.get("val")))
        return numbers[node]

    calls = []
    for position, node in enumerate(nodes):
        key = frozen((node.args, node.kwargs), number)
        calls.append((str(node.target), key, layout(node.meta.get("val"))))
        numbers[node] = ("own", position)
    return (tuple(calls), tuple(outside))
