"""Which extents of a task are free: found by running the reference at other sizes, without any data.

Equal extents are taken to be one dim (s0, s1, …). A dim is free when the reference, on fake tensors, runs with that
dim larger, smaller and prime, and every output's shape follows by renaming alone. Extents of 1 stay fixed: they can't
be told from broadcasting. So do extents that are sums or products of others: such a reference fails at the new size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autokernel.records import Dim, Task, TensorSpec
from autokernel.task import LoadedTask
from autokernel.task.layout import restride, storage_elements


def discover(loaded: LoadedTask) -> Task:
    """The task with `dims` filled in, and every spec's `dims` naming its free extents (None where fixed)."""
    task = named(loaded.task)
    dims = {}
    for name, dim in task.dims.items():
        if not all(_follows(loaded.reference, task, {name: size}) for size in _trial_sizes(dim.value)):
            dims[name] = dim
            continue
        smallest = next((size for size in (0, 1) if _follows(loaded.reference, task, {name: size})), 2)
        if smallest == 0 and any(spec.high == dim.value for spec in task.inputs):
            smallest = 1  # no index is below 0
        dims[name] = Dim(value=dim.value, free=True, min=smallest)
    free = {name for name, dim in dims.items() if dim.free}
    if len(free) > 1 and not _follows(loaded.reference, task, {name: dims[name].value + 3 + i
                                                               for i, name in enumerate(sorted(free))}):  # fmt: skip
        dims = {name: Dim(value=dim.value) for name, dim in dims.items()}  # free one by one, but not together
        free = set()
    return task.model_copy(
        update={
            "dims": dims,
            "inputs": tuple(_only(spec, free) for spec in task.inputs),
            "outputs": tuple(_only(spec, free) for spec in task.outputs),
        }
    )


def at(task: Task, sizes: Mapping[str, int]) -> Task:
    """The task at other sizes of its dims: shapes, strides, index bounds; flops and bytes scaled by the elements.

    Raises `ValueError` for a dim that the task doesn't have, isn't free, or doesn't reach that size.
    """
    for name, size in sizes.items():
        dim = task.dims.get(name)
        if dim is None or (size != dim.value and not dim.free):
            raise ValueError(f"{task.id} has no free dim {name}")
        if size != dim.value and (size < (dim.min or 0) or (dim.max is not None and size > dim.max)):
            raise ValueError(f"{name}={size} is outside {dim.min}…{dim.max}")
    return _resized(task, sizes)


def named(task: Task) -> Task:
    """The task with a dim for every distinct extent above 1 of its inputs, none of them free yet."""
    names: dict[int, str] = {}
    for spec in task.inputs:
        for extent in spec.shape:
            if extent > 1:
                names.setdefault(extent, f"s{len(names)}")
    return task.model_copy(
        update={
            "dims": {name: Dim(value=extent) for extent, name in names.items()},
            "inputs": tuple(_named(spec, names) for spec in task.inputs),
            "outputs": tuple(_named(spec, names) for spec in task.outputs),
        }
    )


def fake_inputs(task: Task) -> list[Tensor]:
    """Meta-data only: under the caller's fake mode, tensors of the task's layout."""
    made = []
    for spec in task.inputs:
        size = storage_elements(spec.shape, spec.stride, spec.offset)
        base = torch.empty(size, dtype=getattr(torch, spec.dtype))
        made.append(base.as_strided(spec.shape, spec.stride, spec.offset))
    return made


def _named(spec: TensorSpec, names: Mapping[int, str]) -> TensorSpec:
    return spec.model_copy(update={"dims": tuple(names.get(extent) for extent in spec.shape)})


def _only(spec: TensorSpec, free: set[str]) -> TensorSpec:
    kept = tuple(name if name in free else None for name in spec.dims or ())
    return spec.model_copy(update={"dims": kept if any(kept) else None})


def _trial_sizes(value: int) -> tuple[int, ...]:
    """Larger, smaller and prime; none of them 1, which broadcasts, and none a divisor of much."""
    return (2 * value + 3, max(value // 2 + 1, 2) if value != 2 else 3, 13 if value != 13 else 17)


def _resized(task: Task, sizes: Mapping[str, int]) -> Task:
    changed = {task.dims[name].value: size for name, size in sizes.items()}

    def resize(spec: TensorSpec) -> TensorSpec:
        names: Sequence[str | None] = spec.dims or (None,) * len(spec.shape)
        shape = tuple(
            sizes[name] if name is not None and name in sizes else extent
            for name, extent in zip(names, spec.shape, strict=True)
        )
        high = changed.get(spec.high, spec.high) if spec.high is not None else None
        stride = restride(spec.shape, spec.stride, shape) if shape != spec.shape else spec.stride
        return spec.model_copy(update={"shape": shape, "stride": stride, "high": high})

    inputs, outputs = tuple(map(resize, task.inputs)), tuple(map(resize, task.outputs))
    before = sum(_elements(spec) for spec in (*task.inputs, *task.outputs))
    after = sum(_elements(spec) for spec in (*inputs, *outputs))
    scale = after / before if before else 1.0
    return task.model_copy(
        update={
            "inputs": inputs,
            "outputs": outputs,
            "dims": {name: dim.model_copy(update={"value": sizes.get(name, dim.value)})
                     for name, dim in task.dims.items()},
            "flops": round(task.flops * scale),
            "min_bytes": round(task.min_bytes * scale),
        }
    )  # fmt: skip


def _elements(spec: TensorSpec) -> int:
    total = 1
    for extent in spec.shape:
        total *= extent
    return total


def _follows(reference: Callable[..., Any], task: Task, sizes: Mapping[str, int]) -> bool:
    """Whether the reference runs at these sizes and its outputs have the shapes that renaming gives."""
    there = _resized(task, sizes)
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            found = reference(*fake_inputs(there))
    except Exception:  # whatever a reference raises at a size it wasn't written for: this dim isn't free
        return False
    found = found if isinstance(found, (tuple, list)) else (found,)
    return [tuple(value.shape) for value in found] == [spec.shape for spec in there.outputs]
