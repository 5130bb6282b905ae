"""Kernels attributed to the marked ranges of CPU time that launched them: pure arithmetic over recorded events.

A GPU runs a kernel long after the call that launched it returned. What connects the two is a correlation number: of the
runtime call (cudaLaunchKernel), and of the PyTorch operator in which it was made. Where kernels overlap, each instant
counts once, for the kernel that began first: the parts add up to the time in which the GPU was busy.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mark:
    """A named range of CPU time, nanoseconds. Marks of one kind don't overlap; those of another kind may hold them."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Kernel:
    """Something that ran on the GPU, nanoseconds: a kernel, a copy, a memset. A correlation of 0 is unknown."""

    name: str
    start: int
    end: int
    launch: int = 0
    operator: int = 0


@dataclass
class Measured:
    """One run: nanoseconds in which the GPU was busy, and of these, what each part launched."""

    busy: int = 0
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """What a profiler recorded. `launches`, `operators`: correlation → start on the CPU, nanoseconds."""

    marks: tuple[Mark, ...]
    launches: Mapping[int, int]
    operators: Mapping[int, int]
    kernels: tuple[Kernel, ...]

    def runs(self, run: str, part: str) -> list[Measured]:
        """One figure for each mark called `run`, in order; its parts are the marks whose names begin with `part`."""
        runs = _Ranges([mark for mark in self.marks if mark.name == run])
        parts = _Ranges([mark for mark in self.marks if mark.name.startswith(part)])
        found: list[list[Kernel]] = [[] for _ in runs.marks]
        for kernel in self.kernels:
            number = self._within(kernel, runs)
            if number is not None:
                found[number].append(kernel)
        return [self._measured(kernels, parts) for kernels in found]

    def _measured(self, kernels: Sequence[Kernel], parts: _Ranges) -> Measured:
        measured = Measured()
        for kernel, spent in exclusive(kernels):
            measured.busy += spent
            number = self._within(kernel, parts)
            if number is not None:
                name = parts.marks[number].name
                measured.parts[name] = measured.parts.get(name, 0) + spent
        return measured

    def _within(self, kernel: Kernel, ranges: _Ranges) -> int | None:
        """The range that launched the kernel. The operator is asked first: its clock is that of the marks. It may have
        begun before the mark, when the launch is no operator's but the mark's own."""
        for times, correlation in ((self.operators, kernel.operator), (self.launches, kernel.launch)):
            time = times.get(correlation) if correlation else None
            number = ranges.at(time) if time is not None else None
            if number is not None:
                return number
        return None


class _Ranges:
    """Marks that don't overlap, by time."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.marks = sorted(marks, key=lambda mark: mark.start)
        self._starts = [mark.start for mark in self.marks]

    def at(self, time: int) -> int | None:
        number = bisect.bisect_right(self._starts, time) - 1
        return number if number >= 0 and time <= self.marks[number].end else None


def exclusive(kernels: Sequence[Kernel]) -> list[tuple[Kernel, int]]:
    """Kernels in order of their start, each with the nanoseconds in which no earlier one ran: they sum to the union."""
    found, covered = [], 0
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start, kernel.end)):
        found.append((kernel, max(0, kernel.end - max(kernel.start, covered))))
        covered = max(covered, kernel.end)
    return found
