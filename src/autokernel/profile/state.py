"""Running a user's model without leaving a trace: inputs cloned, buffers put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def clone(tree: Any) -> Any:
    """A copy of the tensors in a tree, keeping strides; other leaves are shared."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def named_buffers(model: Any) -> list[tuple[str, Tensor]]:
    """The buffers of a Module; none of a plain function."""
    return list(model.named_buffers()) if isinstance(model, nn.Module) else []


@contextmanager
def keeping_buffers(model: Any) -> Iterator[dict[str, Tensor]]:
    """Buffers as they were, before and after; yields their first values."""
    first = {name: buffer.detach().clone() for name, buffer in named_buffers(model)}
    try:
        yield first
    finally:
        with torch.no_grad():
            for name, buffer in named_buffers(model):
                if name in first and buffer.shape == first[name].shape and not same(buffer, first[name]):
                    buffer.copy_(first[name])


def same(one: Tensor, other: Tensor) -> bool:
    """The same values, NaN equal to NaN, in the same dtype and shape."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    equal = one == other
    if one.is_floating_point() or one.is_complex():
        equal |= (one != one) & (other != other)
    return bool(equal.all())
