"""The schedules of a region: every choice that changes its C++ text, most promising first."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from torch import fx

from autokernel.errors import UnknownName
from autokernel.generate.emit_cpp import emit
from autokernel.generate.kernel_file import kernel_file
from autokernel.generate.layout import loops
from autokernel.generate.plan import Plan, plan
from autokernel.generate.schedule import Schedule
from autokernel.records import Task

LIMIT = 96  # texts; those further from the first guess are left out
ATTEMPTS = 250  # schedules written in search of distinct texts
_SMALL = 16_384  # elements of the largest output below which a second thread hardly pays for being woken
_LARGE = 8 << 20  # bytes written beyond which the caches can't be of use to whoever reads them next


class Space:
    """The schedules of one task. Texts are compared without their headers: two schedules with one text are one."""

    def __init__(self, task: Task, module: fx.GraphModule, language: str = "cpp", threads: int = 1) -> None:
        """Raises `NotGenerated` for a region that can't be written, `UnknownName` for another language."""
        if language != "cpp":
            raise UnknownName(kind="kernel language", name=language, known="cpp")
        self.task = task
        self.plan = plan(module, task)
        self.values = _effective(self.plan, axes(self.plan, threads))

    def code(self, schedule: Schedule) -> str:
        """The C++ text alone."""
        return emit(self.plan, schedule)

    def source(self, schedule: Schedule) -> str:
        """The complete kernel file."""
        return kernel_file(self.task, self.plan, schedule)

    def first(self, limit: int = LIMIT) -> tuple[Schedule, ...]:
        """Schedules with distinct texts, by how many choices differ from the first guess. Deterministic."""
        seen: set[str] = set()
        found: list[Schedule] = []
        for schedule in itertools.islice(_ordered(self.values), ATTEMPTS):
            text = self.code(schedule)
            if text not in seen:
                seen.add(text)
                found.append(schedule)
                if len(found) == limit:
                    break
        return tuple(found)

    def neighbours(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """Schedules that differ in one choice."""
        return tuple(
            dataclasses.replace(schedule, **{axis: option})
            for axis, options in self.values.items()
            for option in options
            if option != getattr(schedule, axis)
        )


def _effective(planned: Plan, values: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Without the values that change nothing in this plan, neither alone nor with a flat loop cut into blocks."""
    bases = [Schedule(**{axis: options[0] for axis, options in values.items()})]
    if len(values.get("block", ())) > 1:
        bases.append(dataclasses.replace(bases[0], block=max(values["block"])))
    if "lanes" in values:
        bases.append(dataclasses.replace(bases[0], lanes=0))
    found = {}
    for axis, options in values.items():
        kept: list[Any] = []
        texts: list[tuple[str, ...]] = []
        default = getattr(Schedule(), axis)
        for option in sorted(options, key=lambda option: option != default):
            made = tuple(emit(planned, dataclasses.replace(base, **{axis: option})) for base in bases)
            if made not in texts:
                texts.append(made)
                kept.append(option)
        found[axis] = tuple(option for option in options if option in kept) or (default,)
    return found


def axes(planned: Plan, threads: int) -> dict[str, tuple[Any, ...]]:
    """The values of each choice for this plan, the likeliest first; axes that matter most come first."""
    row = planned.kind == "row"
    elements = max(buffer.elements for buffer in planned.outputs)
    work = max(elements, max((b.elements for b in planned.inputs), default=0))
    written = sum(buffer.elements for buffer in planned.outputs) * 4
    found: dict[str, tuple[Any, ...]] = {}
    if row:
        found["keep"] = ("output", "buffer", "recompute")
        found["lanes"] = (32, 16, 64, 0)
        found["rows"] = (1, 2, 4)
        found["divide"] = ("reciprocal", "exact")
        found["streams"] = (1, 2, 4)
        found["parts"] = (1, 2, 4)
    else:
        found["order"] = ("stores", "loads", "tiles")
        found["segments"] = ("together", "apart")
        blocks = _blocks(planned)
        found["block"] = (*blocks, 0) if written >= _LARGE else (0, *blocks)
        found["streams"] = (1, 2, 4)
        found["rows"] = (1, 2, 4)
    found["stores"] = ("streaming", "cached") if written >= _LARGE else ("cached", "streaming")
    found["chunk"] = (0, 4, 16) if threads > 1 else (0,)
    if threads == 1:
        found["threads"] = ("one",)
    else:
        found["threads"] = ("one", "all") if work < _SMALL else ("all", "one")
    return found


def _blocks(planned: Plan) -> tuple[int, ...]:
    """Even pieces of a flat loop: about 1k, 4k and 16k elements."""
    flat = [loops(nest, Schedule()) for nest in planned.nests]
    extents = [found.columns[0].extent for found in flat if not found.rows and found.columns]
    chosen = []
    for wish in (4096, 1024, 16384):
        near = [d for n in extents for d in _divisors(n) if wish // 2 <= d <= wish * 2 and d < n]
        if near:
            chosen.append(min(near, key=lambda d: (abs(math.log(d / wish)), d)))
    return tuple(dict.fromkeys(chosen))


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def _ordered(values: dict[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    """The first guess, then all that differ from it in one choice, in two, …"""
    guess = Schedule(**{axis: options[0] for axis, options in values.items()})
    names = [axis for axis, options in values.items() if len(options) > 1]
    yield guess
    for distance in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, distance):
            for others in itertools.product(*(values[axis][1:] for axis in chosen)):
                yield dataclasses.replace(guess, **dict(zip(chosen, others, strict=True)))
