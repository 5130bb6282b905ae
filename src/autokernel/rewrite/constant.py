"""The value of a node that no data reaches: shapes, literals and `arange` only, computed on the CPU.

Only operators that give the same bits on every device are evaluated (no exp, no sums of floats): a comparison on top of
a value that differs in its last bit would turn an element of a mask around. What isn't on the list is a reason to leave
the node alone, never an error.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

aten = torch.ops.aten
LARGEST = 2**26  # elements of any one tensor on the way; a mask of 8192 × 8192

# made of their first argument's shape only, whatever it holds; the position of the fill value where there is one
_FILLED: dict[Any, float | None] = {
    aten.new_ones: 1,
    aten.new_zeros: 0,
    aten.ones_like: 1,
    aten.zeros_like: 0,
    aten.new_full: None,
    aten.full_like: None,
}
_NAMES = """
    arange full ones zeros scalar_tensor lift_fresh lift_fresh_copy clone alias detach view _unsafe_view reshape
    unsqueeze squeeze expand expand_as permute transpose t slice select narrow flip cat stack repeat unbind split
    split_with_sizes index gather index_select unfold to _to_copy type_as add sub rsub mul neg abs minimum maximum clamp
    diff eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor
    __and__ __or__ __xor__ where masked_fill tril triu any all
"""
_EXACT = frozenset(getattr(aten, name) for name in _NAMES.split())
# on integers only: floats are rounded in the order in which a device adds them up
_EXACT_INTEGERS = frozenset((aten.cumsum, aten.sum, aten.floor_divide, aten.remainder))
_VIEWS = frozenset((aten.expand, aten.expand_as))


def constant_value(node: fx.Node) -> Tensor | str:
    """The node's value as a CPU tensor, or why it has none. Shape and dtype are those of `meta["val"]`."""
    order, reason = _ancestors(node)
    if reason is not None:
        return reason
    uses = Counter(argument for each in order for argument in _reads(each))
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for each in order:
            values[each] = _value(each, values)
            for argument in _reads(each):
                uses[argument] -= 1
                if not uses[argument]:
                    del values[argument]
    value, expected = values[node], node.meta["val"]
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return f"it has {value.dtype} {tuple(value.shape)} on the CPU"
    return value  # type: ignore[no-any-return]


def _ancestors(node: fx.Node) -> tuple[list[fx.Node], str | None]:
    """All that the node's value is made of, in the graph's order, or why it can't be evaluated."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.op != "call_function":
            return [], f"it depends on {current.name}, an input"
        if current not in found:
            found.add(current)
            stack.extend(_reads(current))
    order = [each for each in node.graph.nodes if each in found]
    return order, next((reason for each in order if (reason := _unfit(each))), None)


def _unfit(node: fx.Node) -> str | None:
    if node.target is operator.getitem:
        return None
    packet = _packet(node)
    if packet in _FILLED:
        if not isinstance(_fill(node), (int, float)):
            return f"it is filled with {_fill(node)}"
    elif packet not in _EXACT and packet not in _EXACT_INTEGERS:
        return f"{node.target} is not one of the operators that are evaluated"
    value = node.meta.get("val")
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if packet in _EXACT_INTEGERS and isinstance(each, Tensor) and each.dtype.is_floating_point:
            return f"{node.target} of floats may be rounded otherwise on another device"
        if not isinstance(each, Tensor):
            return f"{node.name} is not a tensor"
        if each.numel() > LARGEST and packet not in _VIEWS:
            return f"{node.name} has {each.numel()} elements, more than are evaluated"
    return None


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _reads(node: fx.Node) -> list[fx.Node]:
    return [] if _packet(node) in _FILLED else node.all_input_nodes


def _fill(node: fx.Node) -> Any:
    fixed = _FILLED[_packet(node)]
    if fixed is not None:
        return fixed
    name, position = "fill_value", 1 if _packet(node) is aten.full_like else 2
    return node.args[position] if len(node.args) > position else node.kwargs[name]


def _value(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if _packet(node) in _FILLED:
        made = node.meta["val"]
        return torch.full(tuple(made.shape), _fill(node), dtype=made.dtype)

    def real(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return values[argument]
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    args = map_aggregate(node.args, real)
    kwargs = {name: map_aggregate(value, real) for name, value in node.kwargs.items() if name != "pin_memory"}
    assert callable(node.target)
    return node.target(*args, **kwargs)
