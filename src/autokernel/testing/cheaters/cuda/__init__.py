"""The cheaters as Triton kernels, for tasks on a CUDA device.

kernels.py   the honest kernels that cheats are wrapped around
ported.py    the C++ cheats whose text is as good for a Triton kernel
values.py    what is in the outputs
memory.py    answers from memory, and work left out of what is timed
process.py   streams, clocks, caches, faults of the device
odd.py       honest, but odd
"""

from __future__ import annotations

from autokernel.testing.cheaters.base import Case
from autokernel.testing.cheaters.cuda import memory, odd, ported, process, values

__all__ = ["CHEATS", "ODD"]

CHEATS: tuple[Case, ...] = (*process.CASES, *memory.CASES, *values.CASES, *ported.CASES)
ODD: tuple[Case, ...] = odd.CASES
