"""An experiment as data: its line, its verdict, its source and what it changed. Reads beside a live run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autokernel.loop.folder import RunFolder
from autokernel.records import Trial, Verdict


@dataclass(frozen=True)
class Shown:
    trial: Trial
    verdict: Verdict
    source: str
    diff: str  # unified, against the incumbent it was made from


def show(run: Path, number: int) -> Shown:
    """Raises NotARun, NewerSchema, NoSuchExperiment, BrokenFile."""
    journal = RunFolder.open(run).journal
    trial = journal.trial(number)
    return Shown(trial, journal.verdict(number), journal.source(number), journal.repository.diff(trial.commit))
