"""What no kernel can be faster than: the memory's clock and width, and the SMs' clock times a generous rate.

The numbers come from the driver (`cuDeviceGetAttribute`), never from a table of device names. They bound what is
possible, so they are generous: a figure below them is wrong, one above them proves nothing. A figure that the device
was measured to pass is no bound and is left out.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

_CLOCK_RATE, _MEMORY_CLOCK_RATE, _BUS_WIDTH = 13, 36, 37  # CUdevice_attribute: kHz, kHz, bits
_DATA_RATE = 2  # transfers a memory clock, as the driver counts it: DDR

# flop per SM and cycle. Dense tensor cores of the widest chip so far do 8192 in 16 bits (Blackwell; Hopper 4096), and
# structured sparsity doubles that. float32 may be made of three 16-bit products, float64 of many 8-bit ones.
_PER_CYCLE = {
    "bfloat16": 16384,
    "float16": 16384,
    "float32": 8192,
    "float64": 1024,
    "float8_e4m3fn": 32768,
    "float8_e5m2": 32768,
}


@dataclass(frozen=True)
class Spec:
    """Peak rates by clock and width; None where the driver doesn't tell."""

    bytes_per_second: float | None
    flops: dict[str, float]

    def beyond(self, measured_bytes_per_second: float, measured_flops: dict[str, float]) -> Spec:
        """Without the figures that a measurement has passed: those are no bounds."""
        memory = self.bytes_per_second
        return Spec(
            memory if memory is not None and memory >= measured_bytes_per_second else None,
            {dtype: rate for dtype, rate in self.flops.items() if rate >= measured_flops.get(dtype, 0.0)},
        )


def spec(index: int, sms: int) -> Spec:
    """Bounds of CUDA device `index` with `sms` streaming multiprocessors."""
    return from_attributes(
        sms, attribute(index, _CLOCK_RATE), attribute(index, _MEMORY_CLOCK_RATE), attribute(index, _BUS_WIDTH)
    )


def from_attributes(sms: int, clock_khz: int, memory_khz: int, bus_bits: int) -> Spec:
    """The arithmetic; an attribute of 0 is one that the driver doesn't tell."""
    memory = 1e3 * memory_khz * _DATA_RATE * bus_bits / 8
    flops = {dtype: 1e3 * clock_khz * sms * per_cycle for dtype, per_cycle in _PER_CYCLE.items()}
    return Spec(memory or None, flops if clock_khz else {})


def attribute(index: int, number: int) -> int:
    """A CUdevice_attribute; 0 where there is no NVIDIA driver or it doesn't know. Makes no context."""
    driver = _driver()
    device, value = ctypes.c_int(0), ctypes.c_int(0)
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return 0
    return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) else max(value.value, 0)


def driver_version() -> str:
    """The NVIDIA driver's version, "580.65.06"; the CUDA version it supports where /proc does not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    if found:
        return found.group()
    driver, value = _driver(), ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(value)):
        return "unknown"
    return f"for CUDA {value.value // 1000}.{value.value % 1000 // 10}"


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
