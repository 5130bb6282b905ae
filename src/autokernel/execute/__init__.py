"""Where judging happens. Today: this process's own device (local.py); a pool of GPUs or a cluster fits the same door.

Jobs are plain records, so that they can travel as JSON; an executor is given a way to open a bench for a task and knows
nothing of the judge's insides, of decisions or of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal, Protocol

from autokernel.records import Record, Timing, Verdict

OpponentKind = Literal["kernel", "eager", "inductor"]


class Side(Record):
    """One side of a timing: a kernel's source, or the reference in eager mode or alone under Inductor."""

    kind: OpponentKind
    source: str | None = None


class Job(Record):
    """Judge `source` for the task in `folder`. `level` is how far to go; times are taken against `opponent`.

    `drop_slow`: end after the smoke stage when one block shows no gain; without it everything is run and timed.
    """

    folder: str
    source: str
    opponent: Side
    level: Literal["correctness", "screen", "full"] = "full"
    min_gain: float = 0.005
    max_pairs: int = 25
    spread: float = 0.0  # of one pair of a kernel against itself, where it was measured; what the screen allows for
    deadline_seconds: float = 30.0
    drop_slow: bool = True


class Comparison(Record):
    """Time two sides against each other; `first` is the incumbent and `second` the candidate of the Timing."""

    folder: str
    first: Side
    second: Side
    max_pairs: int = 8


class Bench(Protocol):
    """A judge for one task, as an executor sees it."""

    def judge(self, job: Job) -> Verdict: ...

    def compare(self, comparison: Comparison) -> Timing: ...

    def prefetch(self, sources: Sequence[str]) -> None: ...

    def rest(self) -> None:
        """Another task is judged next: give back what would only speed this one up."""
        ...

    def close(self) -> None: ...


class Executor(Protocol):
    def submit(self, job: Job) -> Future[Verdict]:
        """Start judging. The future raises what the bench raised (an AutokernelError when it is the user's to see)."""
        ...

    def compare(self, comparison: Comparison) -> Future[Timing]: ...

    def prefetch(self, folder: str, sources: Sequence[str]) -> None:
        """What will likely be submitted next for a task: compilers may begin."""
        ...

    def close(self) -> None:
        """End every process. Safe to call twice; jobs not done are abandoned."""
        ...
