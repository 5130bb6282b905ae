"""Writes a new graph node by node: values computed on the fly, identical calls merged, small calls for index maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg

aten = torch.ops.aten


def frozen(value: Any, number: Callable[[fx.Node], Any] = lambda node: node) -> Any:
    """A hashable stand-in for an argument; the type is part of it (1, 1.0 and True are different constants)."""
    if isinstance(value, fx.Node):
        return ("node", number(value))
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item, number) for item in value)
    if isinstance(value, dict):
        return tuple((key, frozen(value[key], number)) for key in sorted(value))
    return (type(value).__name__, repr(value))


class Emitter:
    """A graph under construction. `call` returns an existing node if the same call was made before."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.graph = fx.Graph()
        self.mode = mode
        self._known: dict[Any, fx.Node] = {}

    def placeholder(self, name: str, val: Any, meta: dict[str, Any]) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta.update(meta, val=val)
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        random = isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
        key = (target, frozen(args), frozen(kwargs))
        if not random and key in self._known:
            return self._known[key]
        name = getattr(target, "overloadpacket", target).__name__
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        with self.mode, torch.no_grad():
            node.meta["val"] = target(*map_arg(args, value_of), **map_arg(kwargs, value_of))
        self._known[key] = node
        return node

    # index maps, in their canonical form; each returns its input unchanged when it would be the identity

    def reshape(self, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        if x.target is aten.reshape.default:
            x = node_arg(x)
        shape = [int(size) for size in shape]
        if list(value_of(x).shape) == shape:
            return x
        return self.call(aten.reshape.default, x, shape)

    def permute(self, x: fx.Node, dims: Sequence[int]) -> fx.Node:
        rank = value_of(x).dim()
        dims = [dim % rank for dim in dims]
        if x.target is aten.permute.default:
            inner = list(x.args[1])  # type: ignore[arg-type]
            x, dims = node_arg(x), [inner[dim] for dim in dims]
        if dims == list(range(rank)):
            return x
        return self.call(aten.permute.default, x, dims)

    def expand(self, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        shape = [int(size) for size in shape]
        if list(value_of(x).shape) == shape:
            return x
        return self.call(aten.expand.default, x, shape)

    def slice(self, x: fx.Node, dim: int, start: int | None, end: int | None, step: int = 1) -> fx.Node:
        shape = value_of(x).shape
        dim = dim % len(shape)
        begin, stop, _ = slice(start, end).indices(shape[dim])
        stop = max(begin, stop)
        if (begin, stop, step) == (0, shape[dim], 1):
            return x
        return self.call(aten.slice.Tensor, x, dim, begin, stop, step)

    def select(self, x: fx.Node, dim: int, index: int) -> fx.Node:
        shape = list(value_of(x).shape)
        dim, index = dim % len(shape), index % shape[dim % len(shape)]
        return self.reshape(self.slice(x, dim, index, index + 1), shape[:dim] + shape[dim + 1 :])

    def cast(self, x: fx.Node, dtype: torch.dtype) -> fx.Node:
        if value_of(x).dtype == dtype:
            return x
        return self.call(aten._to_copy.default, x, dtype=dtype)

    def full(self, shape: Sequence[int], value: Any, like: Tensor) -> fx.Node:
        where = {} if like.device.type == "cpu" else {"device": like.device}
        return self.call(aten.full.default, [int(size) for size in shape], value, dtype=like.dtype, **where)


def node_arg(node: fx.Node, index: int = 0) -> fx.Node:
    argument = node.args[index]
    assert isinstance(argument, fx.Node)
    return argument


def value_of(node: fx.Node) -> Any:
    return node.meta["val"]


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Same shape and, in dims of more than one element, the same strides."""
    if a.shape != b.shape:
        return False
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size <= 1 or left == right for size, left, right in pairs)


def is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)
