"""Kernel files that try to look right or fast without being so, and what the judge must say of each.

Shipped with the product, so that anyone can run them: each case has the expected verdict, stage and reasons, and an
honest twin, the same file with the cheat removed, which must be accepted. A judge that rejects a twin is as useless
as one that accepts the cheat. Cheats about time alone (a patched clock, work skipped in timed loops) are tested with
the timing.
"""

from __future__ import annotations

from pathlib import Path

from autokernel.testing.cheaters import hunting, memory, odd, process, values
from autokernel.testing.cheaters.base import Case

__all__ = ["CHEATS", "ODD", "Case", "reference"]

CHEATS: tuple[Case, ...] = (*values.CASES, *memory.CASES, *process.CASES, *hunting.CASES)
ODD: tuple[Case, ...] = odd.CASES


def reference(task: str) -> Path:
    """The KernelBench-form file of a case's task."""
    return Path(__file__).parent / f"{task}.py"
