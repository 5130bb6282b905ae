"""Kernel files that try to look right or fast without being so, and what the judge must say of each.

Shipped with the product, so that anyone can run them: each case has the expected verdict, stage and reasons, and an
honest twin, the same file with the cheat removed, which must be accepted. A judge that rejects a twin is as useless
as one that accepts the cheat. Cheats about time need the judge's full level; the others are seen without timing.

`CHEATS` and `ODD` are C++, for any machine; `CUDA_CHEATS` and `CUDA_ODD` are Triton, for tasks on a CUDA device.
"""

from __future__ import annotations

from pathlib import Path

from autokernel.testing.cheaters import answers, cuda, hunting, library, memory, models, odd, process, timed, values
from autokernel.testing.cheaters.base import Case

__all__ = ["CHEATS", "CUDA_CHEATS", "CUDA_ODD", "ODD", "Case", "reference"]

CHEATS: tuple[Case, ...] = (
    *values.CASES,
    *memory.CASES,
    *process.CASES,
    *answers.CASES,
    *hunting.CASES,
    *models.CASES,
    *library.CASES,
    *timed.CASES,
)
ODD: tuple[Case, ...] = odd.CASES
CUDA_CHEATS: tuple[Case, ...] = cuda.CHEATS
CUDA_ODD: tuple[Case, ...] = cuda.ODD


def reference(task: str) -> Path:
    """The KernelBench-form file of a case's task."""
    return Path(__file__).parent / f"{task}.py"
