"""Authors of kernels. An author sees a brief and may ask for bounded evaluations; it never sees the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from autokernel.records import Proposal, Trial, Verdict
    from autokernel.task import LoadedTask


EVALUATION = "evaluation"  # how the reason of a trial begins that an author asked for and did not propose


@dataclass(frozen=True)
class Brief:
    """Exactly what an author is told about one task."""

    task: LoadedTask
    incumbent: str | None  # source of the kernel to beat; None before the first accepted one
    incumbent_us: float | None
    floor_us: float | None
    share: float  # of the model's time, all occurrences
    history: tuple[Trial, ...]
    sources: tuple[str, ...] = ()  # sha256 of every source already tried on this task
    threads: int = 1


class Proposer(Protocol):
    """An author. Its state is rebuilt from the journal (`brief.history`, `brief.sources`), never kept in a file."""

    name: str

    def propose(self, brief: Brief, evaluate: Callable[[str], Verdict]) -> Proposal | None:
        """The next candidate, or None when this author has nothing more for the task."""
        ...

    def observe(self, task: str, trial: Trial) -> None:
        """Told of the outcome of its last proposal for `task`."""
        ...

    def outlook(self, brief: Brief) -> float | None:
        """Expected relative gain of the next experiment on this task (0.05: 5 % faster); None: no opinion."""
        ...
