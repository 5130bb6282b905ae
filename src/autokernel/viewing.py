"""A run folder as the `RunView` that reports are written from; also of a run that another process works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autokernel.loop import lock, noise
from autokernel.loop.folder import RunFolder
from autokernel.records import Decision, Proof
from autokernel.report import RunView, progress_png

if TYPE_CHECKING:
    from collections.abc import Iterable

PROOF, PROGRESS = "proof.json", "progress.png"


def view_run(path: Path) -> RunView:
    """The run at `path` as it stands now; takes no lock. Raises NotARun, BrokenFile, NewerSchema."""
    return view_folder(RunFolder.open(path))


def view_folder(folder: RunFolder) -> RunView:
    proof = folder.path / PROOF
    trials = folder.trials
    kept = [trial.experiment for trial in trials if trial.decision is Decision.kept]
    return RunView(
        path=folder.path,
        config=folder.config,
        profile=folder.profile(),
        tasks=folder.tasks(),
        trials=trials,
        verdicts={number: folder.journal.verdict(number) for number in kept},
        proof=Proof.load(proof) if proof.exists() else None,
        owner=owner(folder.path),
        trials_of_same=noise.trials(folder),
    )


def draw(view: RunView) -> str:
    """Draw the run's progress.png; where it went, or why it could not be written (a report needs only to read)."""
    if view.path is None:
        return "A run without a folder has no progress.png."
    path = view.path / PROGRESS
    try:
        progress_png(view, path)
    except OSError as error:
        return f"{path} was not drawn: {error.strerror}."
    return f"{path} drawn."


def owner(run: Path) -> str | None:
    """Who holds the run's lock, in words; None when nobody does.

    Read from /proc/locks: trying the lock, even shared and for a moment, could turn away a writer that comes just then.
    """
    path = run / lock.NAME
    try:
        status = path.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    if wanted not in _flocks(locks.splitlines()):
        return None
    return lock.describe(path.read_bytes())


def _flocks(lines: Iterable[str]) -> set[str]:
    """`device:inode` of every held flock; a process that waits for one has a line with `->`."""
    fields = [line.split() for line in lines]
    return {field[5] for field in fields if len(field) > 5 and field[1] == "FLOCK"}
