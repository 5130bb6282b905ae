"""pick ▸ propose ▸ judge ▸ decide ▸ record, and the journal that survives a kill at any instant.

folder.py      RunFolder: a run on disk, made whole or not at all, locked by its one writer
journal.py     Journal: what was tried; recovery
run.py         run_loop(folder, tasks, profile, proposer, executor, budget=, say=, stop=) -> LoopResult
submit.py      submit(path, task, kernel) -> (Trial, Verdict): the loop for a person or an open agent
show.py        show(path, number) -> Shown: an experiment's diff and verdict
schedule.py    which task next; pure
decide.py      keep or revert; pure
experiment.py  one experiment from a source to its line
judging.py     the executor for a run, made from the judge
signals.py     StopFlag; Ctrl-C, SIGTERM and SIGHUP
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """What one call of the loop may use; None: no limit of that kind."""

    seconds: float | None = None
    experiments: int | None = None


@dataclass(frozen=True)
class LoopResult:
    experiments: int  # of this call
    kept: int  # of this call
    winners: tuple[str, ...]  # tasks whose kernel is confirmed ahead of PyTorch, whenever it was found
    seconds: float
    ended: str  # why, as a sentence
    interrupted: str | None = None  # the signal that ended it
