"""What a language brings to a space of schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autokernel.errors import UnknownName
from autokernel.generate.dialect import LANGUAGES
from autokernel.generate.plan import Plan
from autokernel.records import Task

Axes = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Emitter:
    """`S`: the language's schedules, a frozen dataclass. `axes`: the values of each choice, the likeliest first;
    `bases`: schedules around which a value must change the text; `openings`: what to try before all else."""

    schedule: type[Any]
    code: Callable[[Plan, Any], str]
    file: Callable[[Task, Plan, Any], str]
    axes: Callable[[Plan, int], Axes]
    bases: Callable[[Axes], list[Any]]
    openings: Callable[[Plan, Axes], list[Any]]


def emitter_of(language: str) -> Emitter:
    """Raises `UnknownName`."""
    if language == "cpp":
        return _cpp()
    if language == "triton":
        return _triton()
    raise UnknownName(kind="kernel language", name=language, known=", ".join(LANGUAGES))


def _cpp() -> Emitter:
    from autokernel.generate.axes_cpp import axes, bases
    from autokernel.generate.emit_cpp import emit
    from autokernel.generate.kernel_file import kernel_file
    from autokernel.generate.schedule import Schedule

    return Emitter(Schedule, emit, kernel_file, axes, bases, lambda plan, values: [])


def _triton() -> Emitter:
    from autokernel.generate.axes_triton import axes, bases, openings
    from autokernel.generate.emit_triton import emit
    from autokernel.generate.file_triton import kernel_file
    from autokernel.generate.schedule_triton import TritonSchedule

    return Emitter(
        TritonSchedule, lambda plan, schedule: emit(plan, schedule).code(), kernel_file, axes, bases, openings
    )
