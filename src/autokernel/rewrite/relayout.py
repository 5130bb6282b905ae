"""Strides of a node that change: what reads it is looked at again, up to where nothing changes any more."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

aten = torch.ops.aten
_BY_STORAGE = (aten.as_strided, aten.as_strided_copy, aten.set_)  # they read memory past the tensor's own strides


def fake_mode(node: fx.Node) -> Any:
    """The mode of a node's fake tensor. Raises ValueError when `meta["val"]` isn't one."""
    value = node.meta.get("val")
    if not isinstance(value, torch._subclasses.FakeTensor):
        raise ValueError(f"{node.name} has no fake tensor in meta['val']")
    return value.fake_mode


def change_layout(node: fx.Node, new: Tensor) -> bool:
    """Give `node` the fake tensor `new`, and every later node the one that follows.

    False, and nothing done, where the graph's own outputs would change their strides, where an operator is made for
    exact strides (a kernel), or where a view recorded for the old strides does not exist for the new ones.
    """
    changed = _consequences(node, new)
    if changed is None:
        return False
    for each, value in changed.items():
        each.meta["val"] = value
        if "tensor_meta" in each.meta:
            del each.meta["tensor_meta"]  # it repeats the strides that were
    return True


def _consequences(node: fx.Node, new: Tensor) -> dict[fx.Node, Any] | None:
    changed: dict[fx.Node, Any] = {node: new}
    if _same(node.meta["val"], new):
        return changed
    mode, current = fake_mode(node), node
    while current.op != "output":
        current = current.next
        if not any(argument in changed for argument in current.all_input_nodes):
            continue
        if not _follows(current):
            return None
        args = map_arg((current.args, current.kwargs), lambda n: changed.get(n, n.meta.get("val")))
        try:
            with mode, torch.no_grad():
                value = current.target(*args[0], **args[1])  # type: ignore[operator]
        except (RuntimeError, ValueError):  # a view that the new strides don't allow
            return None
        if not _same(current.meta.get("val"), value):
            changed[current] = value
    return changed


def _follows(node: fx.Node) -> bool:
    """Whether the node takes its inputs with any strides, and tells by its fake which ones it gives."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket in _BY_STORAGE:
        return False
    exact = torch.Tag.needs_exact_strides in node.target.tags or node.target.namespace not in ("aten", "prims")
    return not exact


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(_same(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return old.shape == new.shape and old.dtype == new.dtype and old.stride() == new.stride()
    return not isinstance(old, Tensor) and not isinstance(new, Tensor) and bool(old == new)
