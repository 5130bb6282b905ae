"""Flops and the bytes that every right kernel must move.

Flops: one per element of a pointwise operator's result and of a reduction's operand; matrix products, convolutions and
attention by torch's own formulas (2·m·n·k for a product). Bytes: every input element that is needed, once, and every
output element, once. Needed elements are found by following the index maps from the input (a slice needs its own part,
an expanded dim its one element); where a value is gathered by an index, the elements picked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from autokernel.graph.emitter import node_arg, value_of
from autokernel.graph.opset import kind_of

aten = torch.ops.aten
_VIEWS = frozenset(
    {aten.reshape.default, aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.clone.default}
)
_PICKS = frozenset({aten.gather.default, aten.embedding.default, aten.index_select.default})
_LARGE = 1 << 22


def count(module: fx.GraphModule) -> tuple[int, int]:
    """(flops, min_bytes) of a lowered graph (`lower`'s result)."""
    return flops(module), min_bytes(module)


def flops(module: fx.GraphModule) -> int:
    total = 0
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        kind = kind_of(node.target)
        if kind == "pointwise":
            total += _numel(value_of(node))
        elif kind == "reduction":
            total += _numel(value_of(node.all_input_nodes[0]))
        elif kind == "opaque":
            total += _library(node)
    return total


def _library(node: fx.Node) -> int:
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    if "scaled_dot_product" in packet.__name__:
        return _attention(*(value_of(node_arg(node, position)) for position in range(3)))
    formula = flop_registry.get(packet)
    if formula is None:
        return sum(_numel(value) for value in _tensors(node.meta.get("val")))
    args = fx.node.map_arg((node.args, node.kwargs), value_of)
    return int(formula(*args[0], **args[1], out_val=value_of(node)))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Two products for every query head, whatever the number of key heads: torch's formula knows these from 2.12 on."""
    return 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def min_bytes(module: fx.GraphModule) -> int:
    output = module.graph.output_node()
    results: list[Tensor] = []
    for result in _flat(output.args[0]):
        if isinstance(result, fx.Node):
            results.extend(_tensors(value_of(result)))
    written = sum(_numel(result) * result.element_size() for result in results)
    read = 0
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            read += needed(node) * value.element_size()
    return read + written


def needed(placeholder: fx.Node) -> int:
    """How many distinct elements of an input the graph reads (an upper bound beyond 2²² elements behind views)."""
    value = value_of(placeholder)
    base = [1 if step == 0 else size for size, step in zip(value.shape, value.stride(), strict=True)]
    distinct = math.prod(base)
    reads = list(_reads(placeholder))
    if any(user.target not in _PICKS and source is placeholder for source, user in reads):
        return distinct
    picks = sum(min(_numel(value_of(user)), distinct) for source, user in reads if user.target in _PICKS)
    seen = [source for source, user in reads if user.target not in _PICKS]
    if distinct > _LARGE or not seen:
        return min(distinct, picks + sum(_numel(value_of(source)) for source in dict.fromkeys(seen)))
    marks = torch.zeros(distinct, dtype=torch.bool)
    _mark(placeholder, torch.arange(distinct).reshape(base).expand(value.shape), marks)
    return min(distinct, int(marks.sum()) + picks)


def _reads(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(what is read, by whom) below `node`, looking through index maps."""
    for user in node.users:
        if user.target in _VIEWS:
            yield from _reads(user)
        else:
            yield node, user


def _mark(node: fx.Node, positions: Tensor, marks: Tensor) -> None:
    """Mark the elements read below `node`, whose elements are the input's `positions`."""
    if any(user.target not in _VIEWS and user.target not in _PICKS for user in node.users):
        marks[positions.reshape(-1)] = True
    for user in node.users:
        if user.target is aten.clone.default:
            _mark(user, positions, marks)
        elif user.target in _VIEWS:
            _mark(user, user.target(*(positions if arg is node else arg for arg in user.args)), marks)


def _numel(value: Any) -> int:
    return math.prod(value.shape) if isinstance(value, Tensor) else 0


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, (tuple, list)) else []


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, (list, tuple)) else [value]
