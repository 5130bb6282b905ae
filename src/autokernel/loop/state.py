"""What the loop knows of one task while it runs: rebuilt from the journal, so that a resumed run goes on as it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from autokernel.loop import decide
from autokernel.loop.folder import RunFolder
from autokernel.loop.schedule import TaskView
from autokernel.propose import EVALUATION, Brief
from autokernel.records import Decision, FirstIncumbent, Profile, RegionRow, Task, Trial, Verdict
from autokernel.task import LoadedTask

_FIRST_SECONDS, _NEXT_SECONDS = 8.0, 4.0  # expected before anything was measured
_RECENT = 5


@dataclass
class TaskState:
    loaded: LoadedTask
    row: RegionRow | None
    floor_us: float | None
    threads: int
    trials: list[Trial] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # sha256 of each trial's source
    incumbent: str | None = None
    best_ever: str | None = None  # the source of the last one kept for its speed
    incumbent_trial: Trial | None = None
    incumbent_verdict: Verdict | None = None
    first: FirstIncumbent | None = None
    exhausted: str | None = None
    repeats: int = 0  # proposals in a row that were tried before

    @property
    def task(self) -> Task:
        return self.loaded.task

    @property
    def share(self) -> float:
        return self.row.share if self.row is not None else 0.0

    def note(self, trial: Trial, source: str, verdict: Verdict | None) -> None:
        """Take in a finished experiment. The verdict is needed only of a kept one."""
        self.trials.append(trial)
        self.sources.append(sha256(source))
        if trial.decision is Decision.kept:
            if not trial.reason.startswith(decide.KEPT_SIMPLER):
                self.best_ever = source
            self.incumbent, self.incumbent_trial, self.incumbent_verdict = source, trial, verdict

    def proposed(self, source: str) -> bool:
        """Whether this source was judged as a proposal (an author's own evaluation does not count)."""
        wanted = sha256(source)
        return any(
            known == wanted and not trial.reason.startswith(EVALUATION)
            for known, trial in zip(self.sources, self.trials, strict=True)
        )

    def speedup(self) -> float:
        """Of the incumbent against the first incumbent; 1 while PyTorch is ahead or there is no kernel."""
        verdict = self.incumbent_verdict
        if verdict is None or not verdict.wins or verdict.first_incumbent is None:
            return 1.0
        return verdict.baselines[verdict.first_incumbent].speedup

    def brief(self) -> Brief:
        last = self.incumbent_trial
        return Brief(
            task=self.loaded,
            incumbent=self.incumbent,
            incumbent_us=last.latency_us if last is not None else None,
            floor_us=self.floor_us,
            share=self.share,
            history=tuple(self.trials),
            sources=tuple(self.sources),
            threads=self.threads,
        )

    def view(self, outlook: float | None, others: list[TaskState], allowance: float | None) -> TaskView:
        last = self.incumbent_trial
        row = self.row
        return TaskView(
            id=self.task.id,
            share=self.share,
            recoverable=min(1.0, row.recoverable_us / row.time_us) if row is not None and row.time_us > 0 else 0.0,
            speedup=self.speedup(),
            pct_of_ceiling=last.pct_peak if last is not None else None,
            experiments=len(self.trials),
            reverts_in_row=_reverts_in_row(self.trials),
            recent_gains=tuple(_gain(trial) for trial in self.trials[-_RECENT:]),
            seconds=self._expected_seconds(others),
            spent=sum(trial.seconds for trial in self.trials),
            allowance=allowance,
            outlook=outlook,
            exhausted=self.exhausted,
        )

    def _expected_seconds(self, others: list[TaskState]) -> float:
        """Of the next experiment: like this task's last ones; else like the same step on other tasks."""
        if len(self.trials) > 1:
            return _mean([trial.seconds for trial in self.trials[1:][-_RECENT:]])
        if self.trials:
            return _mean([trial.seconds for state in others for trial in state.trials[1:]]) or _NEXT_SECONDS
        return _mean([state.trials[0].seconds for state in others if state.trials]) or _FIRST_SECONDS


def restore(folder: RunFolder, loaded: LoadedTask, profile: Profile) -> TaskState:
    """The state of a task from the journal, the branch and the profile."""
    task = loaded.task
    dtype = task.outputs[0].dtype if task.outputs else "float32"
    floor = profile.ceilings.floor_us(task.flops, task.min_bytes, dtype) if task.min_bytes or task.flops else None
    row = next((row for row in profile.regions if row.task == task.id), None)
    state = TaskState(loaded=loaded, row=row, floor_us=floor, threads=profile.threads)
    state.first = folder.first_incumbent(task.id)
    for trial in folder.trials:
        if trial.task == task.id:
            number = trial.experiment
            kept = trial.decision is Decision.kept  # of a reverted one only the line counts: its verdict may be damaged
            state.note(trial, folder.journal.source(number), folder.journal.verdict(number) if kept else None)
    state.incumbent = folder.journal.incumbent(task.id)
    return state


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def _reverts_in_row(trials: list[Trial]) -> int:
    count = 0
    for trial in reversed(trials):
        if trial.decision is Decision.kept:
            break
        count += not trial.reason.startswith(EVALUATION)
    return count


def _gain(trial: Trial) -> float:
    if trial.decision is Decision.reverted or trial.speedup_vs_incumbent is None:
        return 0.0
    return max(0.0, 1.0 - 1.0 / trial.speedup_vs_incumbent)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
