"""Tensors with a given shape, stride and offset, in storage of their own.

Strides follow a rule when extents change: dims keep their order in memory, an expanded dim stays expanded, and a gap
between two dims stays the same multiple (a half of a wider row) or, where it is no multiple, the same number of
elements (a padded row).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor. torch's convention: an extent of 0 counts as 1."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def restride(shape: Sequence[int], stride: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...]:
    """The strides a tensor of `shape` and `stride` has once its extents are `new_shape`."""
    new = [0] * len(shape)
    old_span = new_span = 1  # what a dense next dim would have as its stride
    for axis in sorted(range(len(shape)), key=lambda axis: (stride[axis], -axis)):
        if stride[axis] == 0:
            continue
        gap, rest = divmod(stride[axis], old_span)
        new[axis] = new_span * gap if gap and not rest else new_span + max(stride[axis] - old_span, 0)
        old_span = stride[axis] * max(shape[axis], 1)
        new_span = new[axis] * max(new_shape[axis], 1)
    return tuple(new)


def storage_elements(shape: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """How many elements a storage must have to hold the tensor."""
    if any(extent == 0 for extent in shape):
        return offset
    return offset + 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))


def distinct(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The shape with expanded dims (stride 0) as 1: one element for each place in memory, unless dims overlap."""
    return tuple(1 if step == 0 else extent for extent, step in zip(shape, stride, strict=True))


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may meet at one place other than through a stride of 0 (sliding windows do)."""
    reach = 0
    for step, extent in sorted((s, n) for n, s in zip(shape, stride, strict=True) if s and n > 1):
        if step <= reach:
            return True
        reach += step * (extent - 1)
    return False


def lay_out(values: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor of exactly this layout holding `values` (of shape `distinct(shape, stride)`).

    Elements of the storage that the tensor doesn't cover are NaN (0 for other dtypes), so that reading beside the
    tensor shows. Where dims overlap, the storage is filled from the values in order instead.
    """
    size = storage_elements(shape, stride, offset)
    places = distinct(shape, stride)
    if tuple(stride) == dense(shape) and offset == 0 and 0 not in shape:
        return values.reshape(tuple(shape)).contiguous().as_strided(tuple(shape), tuple(stride), 0)
    base = torch.full((size,), float("nan") if values.is_floating_point() else 0, dtype=values.dtype)
    if size and overlaps(shape, stride):
        flat = values.reshape(-1)
        base.copy_(flat.repeat(-(-size // max(flat.numel(), 1)))[:size])
    elif size > offset:
        base.as_strided(places, tuple(stride), offset).copy_(values)
    return base.as_strided(tuple(shape), tuple(stride), offset)
