"""Tensors of a region as TensorSpecs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from autokernel.graph.cut import value_name
from autokernel.graph.naming import plain_role, unique
from autokernel.records import Role, Statistics, TensorSpec
from autokernel.task.observe import Domain, Observed

aten = torch.ops.aten


def input_spec(placeholder: fx.Node, seen: Observed | None = None) -> TensorSpec:
    """The spec of a region's input: layout from its captured value, role from the model, values from `seen`."""
    value = placeholder.meta["val"]
    role = placeholder.meta.get("role") or plain_role(value)
    if seen is not None and seen.mask:
        role = Role.mask
    domain = seen.domain if seen is not None else plain_domain(value)
    bound = index_bound(placeholder) if domain == "index" else None
    statistics = seen.statistics if seen is not None else None
    if domain == "index" and bound is None and statistics is not None and statistics.maximum is not None:
        bound = int(statistics.maximum) + 1
    return tensor_spec(placeholder.name, value, role=role, domain=domain, high=bound, statistics=statistics)


def output_specs(nodes: tuple[fx.Node, ...], taken: set[str]) -> tuple[TensorSpec, ...]:
    """Specs of a region's outputs; names by the user's variables, distinct from `taken`."""
    taken = set(taken)
    specs = []
    for node in nodes:
        name = unique(value_name(node) or "out", taken)
        specs.append(tensor_spec(name, node.meta["val"], role=plain_role(node.meta["val"])))
    return tuple(specs)


def tensor_spec(
    name: str,
    value: Tensor,
    *,
    role: Role,
    domain: Domain = "real",
    high: int | None = None,
    statistics: Statistics | None = None,
) -> TensorSpec:
    return TensorSpec(
        name=name,
        dtype=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        stride=tuple(value.stride()),
        offset=int(value.storage_offset()),
        role=role,
        domain=domain,
        high=high,
        statistics=statistics,
    )


def plain_domain(value: Tensor) -> Domain:
    if value.dtype == torch.bool:
        return "bool"
    return "real" if value.dtype.is_floating_point or value.dtype.is_complex else "index"


def index_bound(placeholder: fx.Node) -> int | None:
    """The exclusive bound that an integer input must keep because of what it picks from; None when it picks nothing."""
    bounds = []
    stack = [(placeholder, user) for user in placeholder.users]
    seen: set[tuple[fx.Node, fx.Node]] = set()
    while stack:
        source, user = stack.pop()
        if (source, user) in seen:
            continue
        seen.add((source, user))
        bound = _bound(user, source)
        if bound is not None:
            bounds.append(bound)
        elif user.op == "call_function" and not _changes_values(user):
            stack.extend((user, below) for below in user.users)
    return min(bounds) if bounds else None


def _changes_values(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.dtype.is_floating_point or value.dtype == torch.bool


def _bound(user: fx.Node, source: fx.Node) -> int | None:
    args: Any = user.args
    packet = getattr(user.target, "overloadpacket", None)
    if packet is aten.embedding and args[1] is source:
        return int(args[0].meta["val"].shape[0])
    if packet in (aten.gather, aten.index_select) and args[2] is source:
        return int(args[0].meta["val"].shape[args[1]])
    if (
        packet in (aten.cross_entropy_loss, aten.nll_loss, aten.nll_loss_nd, aten.nll_loss_forward)
        and args[1] is source
    ):
        scores = args[0].meta["val"]
        return int(scores.shape[1 if scores.dim() > 1 else 0])
    if packet is aten.index and source in args[1]:
        return int(args[0].meta["val"].shape[list(args[1]).index(source)])
    return None
