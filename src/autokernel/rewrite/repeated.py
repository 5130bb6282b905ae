"""Key and value heads that a graph repeats for grouped-query attention (`repeat_kv`), found where they were not yet.

The spelling: [B, H, S, d] → unsqueeze → [B, H, 1, S, d] → expand → [B, H, n, S, d] → (a copy) → view [B, H·n, S, d].
Head h of the result is head h // n of the source, which is what `enable_gqa` says.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def before_repeat(node: fx.Node) -> fx.Node | None:
    """The tensor with its heads not repeated, when `node` is `repeat_kv` of one; else None."""
    if node.target not in _VIEWS or not isinstance(node.args[0], fx.Node):
        return None
    wide = node.args[0]
    if wide.target is aten.clone.default and isinstance(wide.args[0], fx.Node):
        wide = wide.args[0]
    if wide.target is not aten.expand.default or not isinstance(wide.args[0], fx.Node):
        return None
    narrow = wide.args[0]
    if narrow.target is not aten.unsqueeze.default or narrow.args[1] not in (2, -3):
        return None
    source = narrow.args[0]
    assert isinstance(source, fx.Node)
    shapes = [_shape(each) for each in (source, narrow, wide, node)]
    if len(shapes[0]) != 4:
        return None
    batch, heads, keys, width = shapes[0]
    if len(shapes[2]) != 5:
        return None
    times = shapes[2][2]
    expected = [
        (batch, heads, keys, width),
        (batch, heads, 1, keys, width),
        (batch, heads, times, keys, width),
        (batch, heads * times, keys, width),
    ]
    return source if times > 1 and shapes == expected else None


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()
