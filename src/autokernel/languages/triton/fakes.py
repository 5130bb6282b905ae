"""Tensors without memory: shape, stride, dtype, device and the alignment of a pointer; what Triton specialises on.

They are torch's FakeTensors, on a CUDA device that needs not exist. Host code that looks at a tensor sees what it will
see on the GPU; host operations on one cost nothing; asking for a value is an error, since there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_BASE = 0x7F00_0000_0000  # where made-up addresses begin
_ALIGNMENT = 512  # bytes: torch's allocator aligns every block so


def install() -> FakeTensorMode:
    """Let FakeTensors have addresses, in this process. Returns the mode to make them in; use it as a context."""
    setattr(FakeTensor, "data_ptr", _address)  # noqa: B010 (mypy: a method may not be assigned)
    always = property(lambda _: True, lambda _, value: None)  # whatever torch.cuda says, which will be stand-ins
    setattr(FakeTensorMode, "avoid_device_init", always)  # noqa: B010
    setattr(fake_tensor, "init_gpu_context", lambda device: None)  # noqa: B010
    if not torch.cuda._is_compiled():
        _index_without_guards()
    return FakeTensorMode(allow_non_fake_inputs=True)


def tensor(spec: Mapping[str, Any]) -> Tensor:
    """A tensor of `spec` (dtype, shape, stride, offset; in elements) in a storage that is just large enough."""
    shape, stride, offset = tuple(spec["shape"]), tuple(spec["stride"]), int(spec["offset"])
    size = offset
    if 0 not in shape:
        size += 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    base = torch.empty(size, dtype=getattr(torch, spec["dtype"]), device="cuda")
    return base.as_strided(shape, stride, offset)


def _address(self: Tensor) -> int:
    """An address that moves with the offset, in a block aligned as torch's allocator aligns it."""
    block = int(self.untyped_storage()._cdata) % (1 << 30)
    return _BASE + block * _ALIGNMENT + int(self.storage_offset()) * self.element_size()


def _index_without_guards() -> None:
    """A torch built without CUDA can't index a tensor that says it is on CUDA (there is no device to switch to)."""
    original = Tensor.__getitem__

    def get(self: Tensor, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(map(_is_basic, parts)):
            return original(self, index)
        return _basic_index(self, parts)

    def put(self: Tensor, index: Any, value: Any) -> None:
        place = get(self, index)
        if isinstance(value, Tensor):
            place.copy_(value)
        else:
            place.fill_(value)

    setattr(FakeTensor, "__getitem__", get)  # noqa: B010
    setattr(FakeTensor, "__setitem__", put)  # noqa: B010


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or (isinstance(part, int | slice) and not isinstance(part, bool))


def _basic_index(made: Tensor, parts: tuple[Any, ...]) -> Tensor:
    """Indexing by integers, slices, None and an ellipsis: views only."""
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)
    axis = 0
    for number, part in enumerate(parts):
        if part is None:
            made = made.unsqueeze(axis)
            axis += 1
        elif part is Ellipsis:
            axis = made.dim() - sum(isinstance(later, int | slice) for later in parts[number + 1 :])
        elif isinstance(part, int):
            made = made.select(axis, part)
        else:
            begin, end, step = part.indices(made.shape[axis])
            made = torch.ops.aten.slice.Tensor(made, axis, begin, end, step)
            axis += 1
    return made
