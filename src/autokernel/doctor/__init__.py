"""What this machine can do, by trying it: each line is ok, warn or fail, and says what to do.

Nothing is concluded from a version string alone where it can be run.

machine.py  Python, torch, compiler, sandbox, git, cores, memory, disk
gpu.py      one line where there is no GPU, else GPU, driver, CUDA IPC, other programs, clocks, Triton, sandbox
ipc.py      CUDA IPC really done between two processes; probes.py, triton_probe.py: other programs that gpu.py runs
"""

from __future__ import annotations

from collections.abc import Callable

from autokernel.doctor.check import Check, Diagnosis, Status
from autokernel.doctor.gpu import check_gpus
from autokernel.doctor.machine import (
    build_and_run,
    check_cache,
    check_compiler,
    check_cpu,
    check_disk,
    check_git,
    check_load,
    check_memory,
    check_packages,
    check_python,
    check_sandbox,
    check_torch,
    usable_cores,
)

__all__ = ["Check", "Diagnosis", "Status", "build_and_run", "check_gpus", "check_load", "examine", "usable_cores"]


def examine() -> Diagnosis:
    """Run every check. A check that breaks is itself a failed line: the doctor always finishes."""
    return Diagnosis(tuple(line for name, check in _CHECKS for line in _guarded(name, check)))


def _guarded(name: str, check: Callable[[], Check | tuple[Check, ...]]) -> tuple[Check, ...]:
    try:
        found = check()
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return (Check(name, "fail", text, "Report this with the output of `autokernel doctor --json`."),)
    return found if isinstance(found, tuple) else (found,)


_CHECKS: tuple[tuple[str, Callable[[], Check | tuple[Check, ...]]], ...] = (
    ("autokernel", check_packages),
    ("python", check_python),
    ("torch", check_torch),
    ("compiler", check_compiler),
    ("sandbox", check_sandbox),
    ("git", check_git),
    ("cpu", check_cpu),
    ("load", check_load),
    ("memory", check_memory),
    ("disk", check_disk),
    ("cache", check_cache),
    ("gpu", check_gpus),
)
