"""Region × schedule → the text of a kernel.py. Pure: the same inputs give the same bytes.

    coverage(module) -> Coverage             can the generator write this lowered region, as which kind, or why not
    schedules(task, module) -> tuple         the space, most promising first (deterministic)
    generate(task, module, schedule) -> str  the complete kernel file

How: `walk` turns the graph into one scalar expression per output, `plan` into loop nests, `layout` orders and merges
the loops, `nest_cpp` writes them. A new pointwise operator is one row in `operators`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autokernel.generate.schedule import Schedule

if TYPE_CHECKING:
    from torch import fx

    from autokernel.records import Task

__all__ = ["Coverage", "Schedule", "coverage", "generate", "schedules"]


@dataclass(frozen=True)
class Coverage:
    kind: str | None  # "pointwise" | "row"; None when no generator applies
    reason: str = ""  # why not, in words for the report


def coverage(module: fx.GraphModule) -> Coverage:
    """Whether a lowered region can be written, and as which kind."""
    from autokernel.errors import NotGenerated
    from autokernel.generate.plan import plan

    try:
        return Coverage(plan(module).kind)
    except NotGenerated as error:
        return Coverage(None, f"{error.values['what']}: {error.values['detail']}")


def schedules(task: Task, module: fx.GraphModule, language: str = "cpp", threads: int = 1) -> tuple[Schedule, ...]:
    """Schedules whose C++ texts all differ, most promising first. Raises `NotGenerated`, `UnknownName`."""
    from autokernel.generate.space import Space

    return Space(task, module, language, threads).first()


def generate(task: Task, module: fx.GraphModule, schedule: Schedule) -> str:
    """The complete kernel file for a task. Raises `NotGenerated`."""
    from autokernel.generate.kernel_file import kernel_file
    from autokernel.generate.plan import plan

    return kernel_file(task, plan(module, task), schedule)
