"""The journal: what was tried, in an order that survives a kill at any instant.

One experiment, step by step; the line in results.tsv (4) is the commit point:

    1  commit touching only the task's kernel.py, parent = the branch        (nothing points at it yet)
    2  refs/autokernel/pending/N → that commit                               `begin` ends here; judging follows
    3  verdicts/N.json, whole or absent
    4  the line in results.tsv, appended and fsynced
    5  kept: the branch moves, kernel.py in the work tree follows   reverted: refs/autokernel/reverted/N
    6  pending/N is dropped                                                  `finish` ends here

A kill before 4 loses the experiment in flight: its commit stays reachable as `lost/N` and its number is not used again.
A kill after 4 is completed by the next writer. Only the holder of the run's lock opens a writing journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autokernel.errors import NoSuchExperiment
from autokernel.loop import table
from autokernel.loop.files import write_atomic
from autokernel.loop.repository import Repository
from autokernel.records import Decision, Trial, Verdict

RESULTS = "results.tsv"
VERDICTS = "verdicts"


@dataclass(frozen=True)
class Experiment:
    """An experiment in flight."""

    number: int
    task: str
    source: str
    commit: str


@dataclass(frozen=True)
class Recovery:
    """What opening a run for writing had to put right."""

    lost: tuple[int, ...] = ()  # in flight when the last writer ended
    completed: tuple[int, ...] = ()  # had their line, not yet their branch
    torn_bytes: int = 0
    restored: tuple[str, ...] = ()  # tasks whose kernel.py was not the incumbent's
    saved_edits: tuple[str, ...] = ()  # refs that hold what was in such a kernel.py, if it was in no commit

    def sentences(self) -> tuple[str, ...]:
        out = []
        if self.lost:
            out.append(
                f"In flight when the run ended, and lost: experiment {_numbers(self.lost)} (source kept in git)."
            )
        if self.completed:
            out.append(f"Completed from its line in results.tsv: experiment {_numbers(self.completed)}.")
        if self.torn_bytes:
            out.append(f"Cut off a torn last line of results.tsv ({self.torn_bytes} bytes).")
        if self.saved_edits:
            out.append(f"kernel.py had been edited; the edits are in {', '.join(self.saved_edits)}.")
        return tuple(out)


def kernel_path(task: str) -> str:
    return f"tasks/{task}/kernel.py"


class Journal:
    """Read with `writable=False` at any time, also beside a live writer. `recovery` says what a writer put right."""

    def __init__(self, run: Path, *, writable: bool) -> None:
        self._run = run
        self._writable = writable
        self.repository = Repository(run)
        self.recovery = self._recover() if writable else Recovery()
        self._trials = list(table.read(run / RESULTS))

    # --- reading ------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> tuple[Trial, ...]:
        if not self._writable:
            self._trials = list(table.read(self._run / RESULTS))  # another process may have gone on
        return tuple(self._trials)

    def trial(self, number: int) -> Trial:
        """Raises NoSuchExperiment."""
        found = next((trial for trial in self.trials if trial.experiment == number), None)
        if found is None:
            known = _numbers(tuple(trial.experiment for trial in self._trials)) or "none yet"
            raise NoSuchExperiment(path=self._run, number=number, known=known)
        return found

    def verdict(self, number: int) -> Verdict:
        """Raises NoSuchExperiment, BrokenFile, NewerSchema."""
        self.trial(number)
        return Verdict.load(self._run / VERDICTS / f"{number}.json")

    def incumbent(self, task: str) -> str | None:
        """The source of the task's kernel.py at the branch; None before the first kept one."""
        return self.repository.text(self.repository.head(), kernel_path(task))

    def source(self, number: int) -> str:
        """The source that experiment `number` judged, kept or not."""
        trial = self.trial(number)
        found = self.repository.text(trial.commit, kernel_path(trial.task))
        if found is None:
            raise NoSuchExperiment(path=self._run, number=number, known="no source for it in git")
        return found

    # --- writing ------------------------------------------------------------------------------------------------

    def begin(self, task: str, source: str, description: str = "", commitment: str | None = None) -> Experiment:
        """Steps 1 and 2. `commitment`: of seeds that hold for this experiment only; published in the commit."""
        number = self._next_number()
        title = " ".join(description.split())
        message = f"{task}: {title}"[:100].rstrip(": ") + f"\n\nExperiment: {number}\n"
        if commitment is not None:
            message += f"Seeds: {commitment}\n"
        commit = self.repository.commit({kernel_path(task): source}, message, self.repository.head())
        self.repository.set_ref("pending", number, commit)
        return Experiment(number=number, task=task, source=source, commit=commit)

    def finish(self, experiment: Experiment, trial: Trial, verdict: Verdict) -> None:
        """Steps 3 to 6. The experiment is in the journal once this has passed step 4."""
        write_atomic(self._run / VERDICTS / f"{experiment.number}.json", verdict.dump())
        table.append(self._run / RESULTS, trial)
        self._trials.append(trial)
        self._settle(experiment.number, experiment.commit, trial)
        if trial.decision is Decision.kept:
            self._show_incumbent(trial.task)

    def abandon(self, experiment: Experiment) -> None:
        """Give up an experiment without a verdict; its commit stays reachable."""
        self.repository.set_ref("lost", experiment.number, experiment.commit)
        self.repository.drop_ref("pending", experiment.number)

    def commit_files(self, names: tuple[str, ...], message: str) -> str:
        """Commit files of the run folder as they are on disk (run.toml of a new session)."""
        files = {name: (self._run / name).read_text(encoding="utf-8") for name in names}
        commit = self.repository.commit(files, message, self.repository.head())
        self.repository.move_branch(commit)
        self.repository.match_index()
        return commit

    # --- inside -------------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        used = [trial.experiment for trial in self._trials]
        for kind in ("pending", "lost", "reverted"):
            used.extend(self.repository.refs(kind))
        return max(used, default=0) + 1

    def _settle(self, number: int, commit: str, trial: Trial) -> None:
        """Steps 5 and 6; doing them again changes nothing."""
        if trial.decision is Decision.reverted:
            self.repository.set_ref("reverted", number, commit)
        elif not self.repository.contains(commit):
            self._advance(number, commit, trial.task)
        self.repository.drop_ref("pending", number)

    def _advance(self, number: int, commit: str, task: str) -> None:
        head = self.repository.head()
        if self.repository.parent(commit) != head:
            # somebody committed to the branch by hand meanwhile: their commit stays, ours goes on top
            source = self.repository.text(commit, kernel_path(task)) or ""
            commit = self.repository.commit({kernel_path(task): source}, f"{task}: experiment {number}", head)
        self.repository.move_branch(commit)

    def _show_incumbent(self, task: str) -> None:
        source = self.incumbent(task)
        path = self._run / kernel_path(task)
        if source is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, source)
        self.repository.match_index()

    def _recover(self) -> Recovery:
        self.repository.clear_stale_locks()
        torn = table.repair(self._run / RESULTS)
        (self._run / VERDICTS).mkdir(exist_ok=True)
        written = {trial.experiment: trial for trial in table.read(self._run / RESULTS)}
        lost, completed = [], []
        for number, commit in sorted(self.repository.refs("pending").items()):
            trial = written.get(number)
            if trial is None:
                self.repository.set_ref("lost", number, commit)
                self.repository.drop_ref("pending", number)
                lost.append(number)
            else:
                self._settle(number, commit, trial)
                completed.append(number)
        restored, saved = self._restore_work_tree()
        return Recovery(tuple(lost), tuple(completed), torn, restored, saved)

    def _restore_work_tree(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """kernel.py of every task equals the branch; an edit that is in no commit is kept under lost/edit-…"""
        restored, saved = [], []
        for folder in sorted(path for path in (self._run / "tasks").iterdir() if path.is_dir()):
            task, path = folder.name, self._run / kernel_path(folder.name)
            for partial in folder.glob(".*.partial"):
                partial.unlink(missing_ok=True)
            there = path.read_bytes().decode("utf-8", errors="replace") if path.exists() else None
            if there == self.incumbent(task):
                continue
            if there is not None and not self.repository.holds(there):
                commit = self.repository.commit(
                    {kernel_path(task): there},
                    f"{task}: an edit of kernel.py that was never judged",
                    self.repository.head(),
                )
                self.repository.set_ref("lost", f"edit-{commit[:12]}", commit)
                saved.append(f"refs/autokernel/lost/edit-{commit[:12]}")
            self._show_incumbent(task)
            restored.append(task)
        self.repository.match_index()
        return tuple(restored), tuple(saved)


def _numbers(numbers: tuple[int, ...]) -> str:
    """1, 2, 3, 7 → "1–3, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts)
