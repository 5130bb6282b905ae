"""Device memory that two processes share: one cudaMalloc for each set, handed over by CUDA IPC.

An IPC handle opens the driver's whole block, and the driver puts small allocations into one block of 2 MiB: sizes are
rounded up to whole blocks, so that nothing of ours lies beside a set. PyTorch's own sharing is not used: it hands over
the caching allocator's blocks, which hold other tensors.

Both sides use this file; it needs the bindings that PyTorch's CUDA builds install (cuda-bindings).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

BLOCK_BYTES = 2 << 20
_LAZY_PEER_ACCESS = 1


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; the text has its name and the driver's word."""


class Allocation:
    """Device memory of this process; freed with the object, or by `free`."""

    def __init__(self, size: int) -> None:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # the primary context is current from here on
        self.size = -(-max(size, 1) // BLOCK_BYTES) * BLOCK_BYTES
        self.pointer = int(_allocate(self.size))
        self.free = weakref.finalize(self, _call, "cuMemFree", self.pointer)

    def handle(self) -> str:
        """What another process opens it with, as hexadecimal digits. Raises DriverError where IPC is refused."""
        return bytes(_call("cuIpcGetMemHandle", self.pointer).reserved).hex()

    def bytes(self) -> Tensor:
        """All of it, as bytes. The tensor doesn't keep the memory: this object does."""
        return over(self.pointer, self.size)


def open_handle(handle: str) -> int:
    """The address in this process of memory that another one allocated. Raises DriverError."""
    from cuda.bindings import driver

    wanted = driver.CUipcMemHandle()
    wanted.reserved = bytes.fromhex(handle)
    return int(_call("cuIpcOpenMemHandle", wanted, _LAZY_PEER_ACCESS))


def over(pointer: int, size: int) -> Tensor:
    """`size` bytes of device memory at `pointer` as a tensor of uint8; no copy."""
    return torch.as_tensor(_Array(pointer, size), device="cuda")


class _Array:
    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


def _allocate(size: int) -> Any:
    """Device memory; what PyTorch's allocator keeps for later is given up first where there is none left."""
    try:
        return _call("cuMemAlloc", size)
    except DriverError as error:
        if "OUT_OF_MEMORY" not in str(error):
            raise
    torch.cuda.empty_cache()
    return _call("cuMemAlloc", size)


def _call(name: str, *arguments: Any) -> Any:
    from cuda.bindings import driver

    error, *found = getattr(driver, name)(*arguments)
    if int(error) != 0:
        raise DriverError(f"{name}: {error.name}")
    return found[0] if found else None
