"""A scripted author and a device with known times, for tests of the loop without a compiler, a sandbox or a clock.

A script says, task by task, what the author proposes; a recorded device says how fast each source is. Both are
deterministic: the same script gives the same journal.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from autokernel.errors import AutokernelError, NotComputable
from autokernel.execute import Comparison, Job, Side
from autokernel.propose import Brief
from autokernel.records import Outcome, Proposal, Reason, Stage, Timing, Trial, Verdict

T = TypeVar("T")


def kernel(us: float, *, wrong: bool = False, padding: int = 8) -> str:
    """A kernel file that a `RecordedDevice` takes `us` for. `padding` statements make it longer."""
    lines = "\n".join(f"    step_{index} = {index}" for index in range(padding))
    return (
        f"# us={us!r} wrong={wrong!r}\n"
        'LANGUAGE = "cpp"\nSOURCE = r"""\nvoid run() {}\n"""\n\n\n'
        f"def launch(x, out):\n{lines or '    pass'}\n"
    )


@dataclass
class ScriptedProposer:
    """Proposes the sources of `script[task]` in order, going by the journal alone; then has nothing more."""

    script: Mapping[str, Sequence[str]]
    name: str = "scripted"
    outlooks: Mapping[str, float] = field(default_factory=dict)
    before: Callable[[Brief, Callable[[str], Verdict]], None] | None = None  # called at the start of each proposal
    observed: list[Trial] = field(default_factory=list)

    def propose(self, brief: Brief, evaluate: Callable[[str], Verdict]) -> Proposal | None:
        if self.before is not None:
            self.before(brief, evaluate)
        tried = set(brief.sources)
        for source in self.script.get(brief.task.task.id, ()):
            if hashlib.sha256(source.encode()).hexdigest() not in tried:
                return Proposal(source=source, language="cpp", author=self.name, hypothesis=source.partition("\n")[0])
        return None

    def observe(self, task: str, trial: Trial) -> None:
        self.observed.append(trial)

    def outlook(self, brief: Brief) -> float | None:
        return self.outlooks.get(brief.task.task.id)


@dataclass
class RecordedDevice:
    """An executor whose times are written in the sources (`kernel`), with an interval of ± `noise`.

    `eager_us` and `inductor_us` are by task id; a task missing from `inductor_us` can't be compiled by it. `screens`:
    drop what is no faster after one block, as the judge does.
    """

    eager_us: Mapping[str, float]
    inductor_us: Mapping[str, float]
    noise: float = 0.01
    ceiling_us: float = 1.0
    seconds: float = 0.0  # wall time a job takes
    screens: bool = True
    jobs: list[Job] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    closed: bool = False

    def submit(self, job: Job) -> Future[Verdict]:
        self.jobs.append(job)
        return _future(lambda: self._judge(job))

    def compare(self, comparison: Comparison) -> Future[Timing]:
        self.comparisons.append(comparison)
        return _future(lambda: self._time(comparison.folder, comparison.first, comparison.second))

    def close(self) -> None:
        self.closed = True

    def _judge(self, job: Job) -> Verdict:
        time.sleep(self.seconds)
        if "wrong=True" in job.source:
            return self._verdict(job, Outcome.rejected, Stage.smoke, Reason.wrong_values, None)
        if job.level == "correctness":
            return self._verdict(job, Outcome.accepted, Stage.edges, Reason.ok, None)
        timing = self._time(job.folder, job.opponent, Side(kind="kernel", source=job.source))
        once = timing.model_copy(update={"ci_low": timing.speedup, "ci_high": timing.speedup, "pairs": 1})
        if self.screens and job.drop_slow and timing.speedup < 1.005:
            return self._verdict(job, Outcome.rejected, Stage.screen, Reason.too_slow, once)
        if job.level == "screen":
            return self._verdict(job, Outcome.accepted, Stage.edges, Reason.ok, once)
        confirmed = timing.ci_low > 1.0 and timing.speedup >= 1.0 + job.min_gain
        timing = timing.model_copy(update={"confirmed": confirmed})
        return self._verdict(job, Outcome.accepted, Stage.confirm, Reason.ok, timing)

    def _verdict(self, job: Job, outcome: Outcome, stage: Stage, reason: Reason, timing: Timing | None) -> Verdict:
        return Verdict(
            task=Path(job.folder).name,
            kernel_sha256=hashlib.sha256(job.source.encode()).hexdigest(),
            device="recorded",
            isolation="plain",
            verdict=outcome,
            stage=stage,
            reason=reason,
            timing=timing,
            peak_memory=2**20,
        )

    def _time(self, folder: str, first: Side, second: Side) -> Timing:
        before, after = self._us(folder, first), self._us(folder, second)
        ratio = before / after
        return Timing(
            incumbent_us=before,
            candidate_us=after,
            speedup=ratio,
            ci_low=ratio * (1 - self.noise),
            ci_high=ratio * (1 + self.noise),
            pct_of_ceiling=100 * self.ceiling_us / after,
            pairs=4,
        )

    def _us(self, folder: str, side: Side) -> float:
        task = Path(folder).name
        if side.kind == "kernel":
            return float((side.source or "").partition("us=")[2].split()[0])
        known = self.eager_us if side.kind == "eager" else self.inductor_us
        if task not in known:
            raise NotComputable(task=task, detail=f"{side.kind} has no time recorded")
        return known[task]


def _future(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except AutokernelError as error:
        future.set_exception(error)
    return future
