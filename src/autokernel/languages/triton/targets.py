"""What a kernel is compiled for: "cuda:90", "hip:gfx942", and the figures of such a chip that host code asks for.

A launch that asks how many multiprocessors there are may compile that number into its kernel, so for this machine's
own device the figures are the device's. They are asked of the driver in a process of its own: that makes no context,
and leaves this process without an initialised driver.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from autokernel.errors import DeviceUnavailable, UnknownName

_PROBE = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name} failed with code {code}")
ask("cuInit", 0)
count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
ask("cuDeviceGetCount", ctypes.byref(count))
found = []
for index in range(count.value):
    ask("cuDeviceGet", ctypes.byref(device), index)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    ask("cuDeviceGetName", name, 256, device)
    ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    row = {"name": name.value.decode(), "total_memory": memory.value}
    for key, number in {"major": 75, "minor": 76, "multiprocessors": 16, "shared_bytes": 97, "l2_bytes": 38}.items():
        ask("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        row[key] = value.value
    found.append(row)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Chip:
    """A target and the figures its host code may ask for. Sizes in bytes; `shared_bytes`: the most a block may use."""

    backend: str  # "cuda" | "hip"
    arch: str  # "90" | "gfx942"
    warp: int
    name: str
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int
    total_memory: int

    @property
    def target(self) -> str:
        """As it is written: "cuda:90"."""
        return f"{self.backend}:{self.arch}"

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor), as torch has it: for AMD the digits of the architecture, gfx942 being (9, 4)."""
        digits = self.arch if self.backend == "cuda" else re.sub(r"\D", "", self.arch)[:-1]
        return int(digits[:-1]), int(digits[-1])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_GIB = 1 << 30
_KNOWN = (
    Chip("cuda", "75", 32, "Tesla T4", 40, 65_536, 4 << 20, 16 * _GIB),
    Chip("cuda", "80", 32, "NVIDIA A100", 108, 166_912, 40 << 20, 80 * _GIB),
    Chip("cuda", "86", 32, "NVIDIA A10", 72, 101_376, 6 << 20, 24 * _GIB),
    Chip("cuda", "89", 32, "NVIDIA L40S", 142, 101_376, 96 << 20, 48 * _GIB),
    Chip("cuda", "90", 32, "NVIDIA H200", 132, 232_448, 60 << 20, 141 * _GIB),
    Chip("cuda", "100", 32, "NVIDIA B200", 148, 232_448, 126 << 20, 180 * _GIB),
    Chip("cuda", "120", 32, "NVIDIA RTX PRO 6000", 188, 101_376, 128 << 20, 96 * _GIB),
    Chip("hip", "gfx90a", 64, "AMD Instinct MI250X", 110, 65_536, 8 << 20, 64 * _GIB),
    Chip("hip", "gfx942", 64, "AMD Instinct MI300X", 304, 65_536, 4 << 20, 192 * _GIB),
    Chip("hip", "gfx950", 64, "AMD Instinct MI355X", 256, 163_840, 4 << 20, 288 * _GIB),
)


def chip(target: str) -> Chip:
    """The figures for a target's name: a typical chip of that architecture. Raises `UnknownName`."""
    for known in _KNOWN:
        if known.target == target:
            return known
    raise UnknownName(kind="target", name=target, known=", ".join(known.target for known in _KNOWN))


def this_chip(device_index: int = 0) -> Chip:
    """This machine's CUDA device, as CUDA_VISIBLE_DEVICES counts them. Makes no context. Raises `DeviceUnavailable`."""
    found = _devices()
    if isinstance(found, str):
        raise DeviceUnavailable(device=f"cuda:{device_index}", detail=found)
    if not 0 <= device_index < len(found):
        raise DeviceUnavailable(device=f"cuda:{device_index}", detail=f"this machine has {len(found)} CUDA devices")
    row = dict(found[device_index])
    arch = f"{row.pop('major')}{row.pop('minor')}"
    return Chip(backend="cuda", arch=arch, warp=32, **row)


def target_of(device_index: int = 0) -> str:
    """The target of this machine's CUDA device: "cuda:90". Makes no context. Raises `DeviceUnavailable`."""
    return this_chip(device_index).target


def resolve(target: str | None) -> Chip:
    """The chip for a target's name, this machine's own where it is of that kind; None: this machine's.

    Raises `UnknownName`, `DeviceUnavailable` (None, and there is no device).
    """
    if target is None:
        return this_chip()
    try:
        here = this_chip()
    except DeviceUnavailable:
        return chip(target)
    return here if here.target == target else chip(target)


@functools.cache
def _devices() -> tuple[dict[str, Any], ...] | str:
    """The devices by the driver's own word; or why it can't be asked."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the driver could not be asked: {error}"
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"there is no CUDA device here ({words[0]})"
    return tuple(json.loads(done.stdout))
