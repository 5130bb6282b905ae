"""Region × schedule → the text of a kernel.py. Pure: the same inputs give the same bytes.

    coverage(module, language) -> Coverage   can the generator write this lowered region, as which kind, or why not
    schedules(task, module, language)        the space, most promising first (deterministic)
    generate(task, module, schedule) -> str  the complete kernel file

How: `walk` turns the graph into one scalar expression per output, `plan` into loop nests, `layout` orders and merges
the loops, `nest_cpp` or `nest_triton` writes them. A new pointwise operator is one row in `operators` and one in
`operators_triton`; what a language brings is in `emitter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autokernel.generate.schedule import Schedule
from autokernel.generate.schedule_triton import TritonSchedule

if TYPE_CHECKING:
    from torch import fx

    from autokernel.records import Task

__all__ = ["Coverage", "Schedule", "TritonSchedule", "coverage", "generate", "schedules"]


@dataclass(frozen=True)
class Coverage:
    kind: str | None  # "pointwise" | "row"; None when no generator applies
    reason: str = ""  # why not, in words for the report


def coverage(module: fx.GraphModule, language: str = "cpp") -> Coverage:
    """Whether a lowered region can be written in a language, and as which kind. Raises `UnknownName`."""
    from autokernel.errors import NotGenerated
    from autokernel.generate.plan import plan

    try:
        return Coverage(plan(module, language=language).kind)
    except NotGenerated as error:
        return Coverage(None, f"{error.values['what']}: {error.values['detail']}")


def schedules(
    task: Task, module: fx.GraphModule, language: str = "cpp", threads: int = 1
) -> tuple[Schedule | TritonSchedule, ...]:
    """Schedules whose texts all differ, most promising first. Raises `NotGenerated`, `UnknownName`."""
    from autokernel.generate.space import Space

    return Space(task, module, language, threads).first()


def generate(task: Task, module: fx.GraphModule, schedule: Schedule | TritonSchedule) -> str:
    """The complete kernel file for a task, in the language of the schedule. Raises `NotGenerated`."""
    from autokernel.generate.emitter import emitter_of
    from autokernel.generate.plan import plan

    language = "triton" if isinstance(schedule, TritonSchedule) else "cpp"
    return emitter_of(language).file(task, plan(module, task, language), schedule)
