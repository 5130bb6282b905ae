"""CUDA IPC, really done: memory of one process opened in a fresh one, written there, and seen by the first.

Run as a program, it needs nothing but the standard library and the NVIDIA driver; judged kernels get their buffers in
this way. `probe` starts it in a process of its own, so that the caller never has a CUDA context.

    ipc.py owner N [prefix ...]    N: the GPU's number; prefix: what the guest's command line begins with (bwrap ...)
    ipc.py guest N HANDLE          HANDLE: 64 bytes in hex
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence

SIZE, OWNERS, GUESTS = 1 << 20, 0x5A, 0xA5  # bytes; what either fills the memory with
GUEST_SECONDS, OWNER_SECONDS = 30, 45
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * 64),)


def probe(index: int = 0, prefix: Sequence[str] = ()) -> str | None:
    """None when CUDA IPC works on GPU `index`, else what went wrong. `prefix` goes before the guest's command."""
    command = [sys.executable, "-P", __file__, "owner", str(index), *prefix]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=OWNER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {OWNER_SECONDS} s"
    if done.returncode == 0 and done.stdout.strip() == "ok":
        return None
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return words[-1] if words else f"the program ended with status {done.returncode} and no word"


class _Driver:
    """The CUDA driver with the device's primary context current."""

    def __init__(self, index: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.cuIpcOpenMemHandle_v2.argtypes = (ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint)
        device, context = ctypes.c_int(0), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Raises RuntimeError naming the call and CUDA's own word for what went wrong."""
        status = getattr(self.library, name)(*arguments)
        if status:
            word = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(word))
            raise RuntimeError(f"{name}: {(word.value or b'unknown error').decode()} ({status})")

    def fill(self, address: ctypes.c_uint64, value: int) -> None:
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(value), ctypes.c_size_t(SIZE))
        self.call("cuCtxSynchronize")

    def holds(self, address: ctypes.c_uint64, value: int) -> bool:
        host = ctypes.create_string_buffer(SIZE)
        self.call("cuMemcpyDtoH_v2", host, address, ctypes.c_size_t(SIZE))
        return host.raw == bytes([value]) * SIZE


def owner(index: int, prefix: Sequence[str]) -> str:
    """ "ok", or what went wrong."""
    driver, address, handle = _Driver(index), ctypes.c_uint64(0), _Handle()
    driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
    driver.fill(address, OWNERS)
    driver.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    command = [*prefix, sys.executable, "-P", __file__, "guest", str(index), bytes(handle).hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUEST_SECONDS, check=False)
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode or said != ["ok"]:
        return f"in the other process: {said[-1] if said else f'status {done.returncode} and no word'}"
    return "ok" if driver.holds(address, GUESTS) else "what the other process wrote was not seen"


def guest(index: int, handle: str) -> str:
    """ "ok", or what went wrong."""
    driver, address = _Driver(index), ctypes.c_uint64(0)
    opened = _Handle.from_buffer_copy(bytes.fromhex(handle))
    driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, _LAZY_PEER_ACCESS)
    if not driver.holds(address, OWNERS):
        return "the memory opened does not hold what its owner wrote"
    driver.fill(address, GUESTS)
    driver.call("cuIpcCloseMemHandle", address)
    return "ok"


def main(role: str, index: str, *rest: str) -> int:
    try:
        said = owner(int(index), rest) if role == "owner" else guest(int(index), *rest)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        said = str(error)
    sys.stdout.write(said + "\n")
    return 0 if said == "ok" else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
