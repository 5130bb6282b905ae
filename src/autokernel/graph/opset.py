"""The closed operator set of lowered graphs, by role. lower.py's docstring describes it in words."""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
from torch import fx

aten = torch.ops.aten

Kind = Literal["pointwise", "cast", "reduction", "index", "creation", "gather", "opaque"]

REDUCTIONS = frozenset(
    {
        aten.sum.dim_IntList,
        aten.mean.dim,
        aten.amax.default,
        aten.amin.default,
        aten.prod.dim_int,
        aten.any.dims,
        aten.all.dims,
        aten.argmax.default,
        aten.argmin.default,
    }
)
INDEX_MAPS = frozenset(
    {
        aten.reshape.default,
        aten.permute.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.cat.default,
        aten.flip.default,
        aten.clone.default,
    }
)
CREATION = frozenset({aten.full.default, aten.arange.start_step})
GATHERS = frozenset({aten.gather.default})
CAST = aten._to_copy.default


def kind_of(target: Any) -> Kind:
    """The role of a lowered operator; "opaque" when it is not in the closed set."""
    if target in REDUCTIONS:
        return "reduction"
    if target in INDEX_MAPS:
        return "index"
    if target in CREATION:
        return "creation"
    if target in GATHERS:
        return "gather"
    if target is CAST:
        return "cast"
    if isinstance(target, torch._ops.OpOverload) and is_pointwise(target):
        return "pointwise"
    return "opaque"


def is_pointwise(op: torch._ops.OpOverload) -> bool:
    """Tagged pointwise, functional and without random numbers (dropout and bernoulli carry the tag too)."""
    random = torch.Tag.nondeterministic_seeded in op.tags
    return torch.Tag.pointwise in op.tags and not random and not op._schema.is_mutable


def is_closed(node: fx.Node) -> bool:
    """True for placeholders, outputs and calls of operators of the closed set."""
    if node.op in ("placeholder", "output"):
        return True
    return node.op == "call_function" and node.target is not operator.getitem and kind_of(node.target) != "opaque"
