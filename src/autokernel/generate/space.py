"""The schedules of a region: every choice that changes its text, most promising first."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from torch import fx

from autokernel.generate.emitter import Emitter, emitter_of
from autokernel.generate.plan import Plan, plan
from autokernel.records import Task

LIMIT = 96  # texts; those further from the first guess are left out
ATTEMPTS = 250  # schedules written in search of distinct texts


class Space:
    """The schedules of one task. Texts are compared without their headers: two schedules with one text are one."""

    def __init__(self, task: Task, module: fx.GraphModule, language: str = "cpp", threads: int = 1) -> None:
        """Raises `NotGenerated` for a region that can't be written, `UnknownName` for another language."""
        self.emitter: Emitter = emitter_of(language)
        self.language = language
        self.task = task
        self.plan = plan(module, task, language)
        self.values = _effective(self.emitter, self.plan, self.emitter.axes(self.plan, threads))

    def code(self, schedule: Any) -> str:
        """The text that tells one schedule from another: without header and helpers."""
        return self.emitter.code(self.plan, schedule)

    def source(self, schedule: Any) -> str:
        """The complete kernel file."""
        return self.emitter.file(self.task, self.plan, schedule)

    def first(self, limit: int = LIMIT) -> tuple[Any, ...]:
        """Schedules with distinct texts, by how many choices differ from the first guess. Deterministic."""
        seen: set[str] = set()
        found: list[Any] = []
        openings = self.emitter.openings(self.plan, self.values)
        guess = openings[0] if openings else self.emitter.schedule(**{a: o[0] for a, o in self.values.items()})
        for schedule in itertools.islice(itertools.chain(openings, _ordered(guess, self.values)), ATTEMPTS):
            text = self.code(schedule)
            if text not in seen:
                seen.add(text)
                found.append(schedule)
                if len(found) == limit:
                    break
        return tuple(found)

    def neighbours(self, schedule: Any) -> tuple[Any, ...]:
        """Schedules that differ in one choice."""
        return tuple(
            dataclasses.replace(schedule, **{axis: option})
            for axis, options in self.values.items()
            for option in options
            if option != getattr(schedule, axis)
        )


def _effective(emitter: Emitter, planned: Plan, values: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Without the values that change nothing in this plan, whatever base they are looked at from."""
    bases = emitter.bases(values)
    found = {}
    for axis, options in values.items():
        kept: list[Any] = []
        texts: list[tuple[str, ...]] = []
        default = getattr(emitter.schedule(), axis)
        for option in sorted(options, key=lambda option: option != default):
            made = tuple(emitter.code(planned, dataclasses.replace(base, **{axis: option})) for base in bases)
            if made not in texts:
                texts.append(made)
                kept.append(option)
        found[axis] = tuple(option for option in options if option in kept) or (default,)
    return found


def _ordered(guess: Any, values: dict[str, tuple[Any, ...]]) -> Iterator[Any]:
    """The first guess, then all that differ from it in one choice, in two, …"""
    others = {axis: tuple(o for o in options if o != getattr(guess, axis)) for axis, options in values.items()}
    names = [axis for axis, options in others.items() if options]
    yield guess
    for distance in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, distance):
            for picked in itertools.product(*(others[axis] for axis in chosen)):
                yield dataclasses.replace(guess, **dict(zip(chosen, picked, strict=True)))
