"""The identity of a region: what it computes (fingerprint) and at which sizes (shape key).

The fingerprint is the sha256 of canonical JSON of the lowered graph: nodes in order with overload and constants,
dtypes, rank and stride class of inputs and outputs. Sizes stand only in the shape key: shapes of inputs and outputs,
and every size or bound among the arguments of index maps and creation. Names, weights, devices
and module paths are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from autokernel.graph.emitter import value_of

aten = torch.ops.aten

# positions of the arguments that hold sizes; their count (the rank) stays in the fingerprint
_SIZES: dict[Any, tuple[int, ...]] = {
    aten.reshape.default: (1,),
    aten.expand.default: (1,),
    aten.slice.Tensor: (2, 3),
    aten.full.default: (0,),
    aten.arange.start_step: (1,),
}


def fingerprint(lowered: fx.GraphModule) -> tuple[str, str]:
    """(fingerprint, shape_key) of `lower`'s result, as hexadecimal sha256; opaque operators are taken as they are."""
    numbers: dict[fx.Node, int] = {}
    nodes: list[Any] = []
    sizes: list[Any] = []
    for position, node in enumerate(lowered.graph.nodes):
        numbers[node] = position
        if node.op == "placeholder":
            nodes.append(["input", _type(value_of(node)), _stride_class(value_of(node))])
            sizes.append(_shape(value_of(node)))
        elif node.op == "output":
            results = [result for result in _flat(node.args[0]) if isinstance(result, fx.Node)]
            described = [[numbers[r], _type(value_of(r)), _stride_class(value_of(r))] for r in results]
            nodes.append(["output", described])
            sizes.extend(_shape(value_of(result)) for result in results)
        else:
            nodes.append(_call(node, numbers, sizes))
    return _digest(nodes), _digest(sizes)


def _call(node: fx.Node, numbers: dict[fx.Node, int], sizes: list[Any]) -> list[Any]:
    hidden = _SIZES.get(node.target, ())
    args = []
    for position, argument in enumerate(node.args):
        if position in hidden:
            sizes.append(_plain(argument, numbers))
            args.append(["sizes", len(argument)] if isinstance(argument, (list, tuple)) else ["size"])
        else:
            args.append(_plain(argument, numbers))
    kwargs = {key: _plain(item, numbers) for key, item in node.kwargs.items() if key not in ("device", "pin_memory")}
    return [str(node.target), args, kwargs, _type(node.meta.get("val"))]


def _plain(value: Any, numbers: dict[fx.Node, int]) -> Any:
    """JSON for a constant; floats by `repr`, so that inf and every bit are kept."""
    if isinstance(value, fx.Node):
        return ["node", numbers[value]]
    if isinstance(value, (list, tuple)):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, float):
        return ["float", repr(value)]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, (list, tuple)) else [value]


def _type(val: Any) -> Any:
    if isinstance(val, Tensor):
        return [str(val.dtype).removeprefix("torch."), val.dim()]
    if isinstance(val, (tuple, list)):
        return [_type(item) for item in val]
    return type(val).__name__


def _shape(val: Any) -> Any:
    return list(val.shape) if isinstance(val, Tensor) else _plain(val, {})


def _stride_class(val: Any) -> Any:
    """ "c" for contiguous; else for each dim its rank among the strides, 0 for broadcast, and whether dense.

    Extents of one have no stride worth the name ("-"): a kernel must not depend on it.
    """
    if not isinstance(val, Tensor) or val.is_contiguous():
        return "c"
    return stride_class(tuple(val.shape), val.stride())


def stride_class(shape: Sequence[int], stride: Sequence[int]) -> str:
    """A size-free description of a layout: the order of the strides, broadcast dims, unit stride, dense or not."""
    ranks = sorted({step for size, step in zip(shape, stride, strict=True) if size > 1 and step > 0})
    letters = [
        "-" if size <= 1 else "0" if step == 0 else str(1 + ranks.index(step))
        for size, step in zip(shape, stride, strict=True)
    ]
    unit = "u" if ranks and ranks[0] == 1 else "s"
    spanned = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size > 1)
    dense = "d" if spanned == math.prod(shape) else "p"
    return ",".join(letters) + unit + dense


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
