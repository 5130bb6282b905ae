"""One experiment: a source goes in, a line of the journal comes out.

    begin ▸ judge against the incumbent ▸ decide ▸ (kept: time it against eager and Inductor, side by side) ▸ finish

Ratios are never multiplied or remembered: what a column says against PyTorch was measured with PyTorch beside it.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable
from typing import Literal

from autokernel.errors import AutokernelError, NotComputable, NotTimed
from autokernel.execute import Comparison, Executor, Job, Side
from autokernel.judge.thresholds import MOST_CAP, Thresholds
from autokernel.loop.decide import Ruling, Standing, clearly_shorter, could_be_simpler, decide
from autokernel.loop.folder import RunFolder
from autokernel.loop.signals import StopFlag
from autokernel.loop.state import TaskState, sha256
from autokernel.propose import EVALUATION
from autokernel.records import Decision, FirstIncumbent, Outcome, Proposal, Reason, Stage, Timing, Trial, Verdict

Baseline = Literal["eager", "inductor"]

# pairs by device class: a GPU's blocks repeat to half a percent, two CPU cores' to several
_CHOOSING_PAIRS = {"cpu": 4, "cuda": 2}  # eager against Inductor: only to know which one to meet
_BASELINE_PAIRS = {"cpu": 6, "cuda": 5}  # a kept kernel against its first incumbent: whether it wins
_OTHER_PAIRS = {"cpu": 3, "cuda": 2}  # against the other of the two: a column of the journal
_BEST_EVER_PAIRS = 12  # "not slower than the best ever" needs a narrow interval
_LEVEL = 0.985  # one block's ratio at which a kernel may still be level with the incumbent

_WORDS = {Outcome.accepted: "PASS", Outcome.rejected: "FAIL", Outcome.suspect: "SUSPECT", Outcome.error: "ERROR"}


@dataclasses.dataclass
class Bench:
    """What every experiment of a run shares."""

    folder: RunFolder
    executor: Executor
    stop: StopFlag
    limits: Thresholds
    author: str
    say: Callable[[str], None]
    most_pairs: int = MOST_CAP  # of one test; fewer where the budget is short, so that one kernel can't eat it
    commitment: str | None = None  # of seeds that hold for one experiment only; a run's own are in run.toml

    def task_folder(self, state: TaskState) -> str:
        return str(self.folder.task_folder(state.task.id))


def first_incumbent(bench: Bench, state: TaskState) -> FirstIncumbent:
    """The faster of the region in eager and alone under Inductor; measured once a run, kept in the run's folder.

    Where Inductor can't be timed it is eager, which must be shown to run: else NotTimed or NotComputable is raised, as
    are the judge's own failures, and nothing is kept, so that a resumed run measures again.
    """
    if state.first is not None:
        return state.first
    started = time.monotonic()
    kind: Baseline = "eager"
    timing, note = None, ""
    try:
        timing = _compare(
            bench, state, Side(kind="eager"), Side(kind="inductor"), _CHOOSING_PAIRS[state.task.device_class]
        )
        kind = "inductor" if timing.speedup > 1.0 else "eager"
    except (NotTimed, NotComputable) as error:
        note = f"Inductor can't be timed on this region: {error}"
        _compare(bench, state, Side(kind="eager"), Side(kind="eager"), 2)  # what failed may be eager itself
    state.first = FirstIncumbent(
        task=state.task.id, kind=kind, timing=timing, note=note, seconds=round(time.monotonic() - started, 3)
    )
    bench.folder.write_first_incumbent(state.first)
    return state.first


def experiment(
    bench: Bench, state: TaskState, proposal: Proposal, *, started: float, evaluation: bool = False
) -> tuple[Trial, Verdict]:
    """Run one experiment to its line. `started` is when the author began (time.monotonic).

    An `evaluation` is an author's own question: screened, journaled, never kept. Raises Stopped when a signal ended it,
    and what the judge raises; the experiment is then given up, its source kept in git.
    """
    journal = bench.folder.journal
    with bench.stop.shielded():
        description = proposal.hypothesis or proposal.schedule or ""
        flight = journal.begin(state.task.id, proposal.source, description, commitment=bench.commitment)
        try:
            with bench.stop.interruptible():
                verdict, ruling = _judge(bench, state, proposal.source, evaluation)
        except (NotTimed, NotComputable) as error:  # this task's trouble: a line of its own, not the end of the run
            verdict = _without_answer(state, proposal.source, error)
            ruling = decide(verdict, proposal.source, Standing(state.incumbent), bench.limits.min_gain)
        except BaseException:
            journal.abandon(flight)
            raise
        trial = _trial(state, proposal, verdict, ruling, flight.number, flight.commit, time.monotonic() - started)
        if not trial.proposer:
            trial = trial.model_copy(update={"proposer": bench.author})
        journal.finish(flight, trial, verdict)
        state.note(trial, proposal.source, verdict)
    return trial, verdict


def _judge(bench: Bench, state: TaskState, source: str, evaluation: bool) -> tuple[Verdict, Ruling]:
    first = first_incumbent(bench, state)
    opponent = Side(kind="kernel", source=state.incumbent) if state.incumbent is not None else Side(kind=first.kind)
    level: Literal["screen", "full"] = "screen" if evaluation else "full"
    folder = bench.task_folder(state)
    job = Job(
        folder=folder,
        source=source,
        opponent=opponent,
        level=level,
        min_gain=bench.limits.min_gain,
        max_pairs=bench.limits.cap,
        spread=bench.limits.spread,
    )
    verdict = bench.executor.submit(job).result()
    if evaluation:
        return verdict, Ruling(Decision.reverted, f"{EVALUATION} by the author: {_in_words(verdict)}")
    verdict = _second_look(bench, state, source, verdict)
    standing = Standing(state.incumbent, _versus_best(bench, state, source, verdict), _has_better(state))
    ruling = decide(verdict, source, standing, bench.limits.min_gain)
    if ruling.decision is Decision.kept:
        verdict = _with_baselines(bench, state, source, verdict, first)
    return verdict, ruling


def _without_answer(state: TaskState, source: str, error: AutokernelError) -> Verdict:
    """The verdict of an experiment that the judge could not settle."""
    return Verdict(
        task=state.task.id,
        kernel_sha256=sha256(source),
        device=state.task.device_class,
        isolation="none",
        verdict=Outcome.error,
        stage=Stage.timing,
        reason=Reason.harness,
        explanation=str(error),
    )


def _second_look(bench: Bench, state: TaskState, source: str, verdict: Verdict) -> Verdict:
    """A clearly shorter kernel that the screen dropped as no faster may be kept as simpler, so it is judged whole.

    It goes through the other stages, and its time comes from pairs against the incumbent instead of one block.
    """
    screened = verdict.timing
    if verdict.reason is not Reason.too_slow or screened is None or state.incumbent is None:
        return verdict
    if screened.speedup < _LEVEL or not clearly_shorter(source, state.incumbent):
        return verdict
    job = Job(
        folder=bench.task_folder(state),
        source=source,
        opponent=Side(kind="kernel", source=state.incumbent),
        min_gain=bench.limits.min_gain,
        max_pairs=_BEST_EVER_PAIRS,
        drop_slow=False,
    )
    whole = bench.executor.submit(job).result()
    return whole.model_copy(update={"seconds": verdict.seconds + whole.seconds})


def _has_better(state: TaskState) -> bool:
    """Whether the best ever is another kernel than the incumbent, which was then kept for being simpler."""
    return state.best_ever is not None and state.incumbent is not None and state.best_ever != state.incumbent


def _versus_best(bench: Bench, state: TaskState, source: str, verdict: Verdict) -> Timing | None:
    """Timed against the best ever where that is another kernel than the incumbent and the answer matters."""
    if not _has_better(state) or state.incumbent is None:
        return None
    if verdict.verdict is not Outcome.accepted or not could_be_simpler(source, state.incumbent, verdict.timing):
        return None
    best = Side(kind="kernel", source=state.best_ever)
    try:
        return _compare(bench, state, best, Side(kind="kernel", source=source), _BEST_EVER_PAIRS)
    except (NotTimed, NotComputable) as error:
        bench.say(f"  {state.task.id}: not timed against the best ever: {error}")
        return None


def _with_baselines(bench: Bench, state: TaskState, source: str, verdict: Verdict, first: FirstIncumbent) -> Verdict:
    """A kept kernel's timings against eager and Inductor; what the judge has settled already is not measured again."""
    found: dict[Baseline, Timing] = {}
    warnings = list(verdict.warnings)
    kinds: tuple[Baseline, ...] = ("eager",) if first.timing is None else ("eager", "inductor")
    for kind in kinds:
        against_it = verdict.timing if state.incumbent is None and kind == first.kind else None
        if against_it is not None and (against_it.confirmed or against_it.ci_high < 1.0):
            found[kind] = against_it
            continue
        try:
            pairs = (_BASELINE_PAIRS if kind == first.kind else _OTHER_PAIRS)[state.task.device_class]
            timing = _compare(bench, state, Side(kind=kind), Side(kind="kernel", source=source), pairs)
        except (NotTimed, NotComputable) as error:
            warnings.append(f"not timed against {kind}: {error}")
            continue
        # new pairs, made after the kernel had been chosen: nothing was selected on them
        found[kind] = timing.model_copy(update={"confirmed": True})
    return verdict.model_copy(
        update={"baselines": found, "first_incumbent": first.kind, "warnings": tuple(warnings)},
    )


def _compare(bench: Bench, state: TaskState, first: Side, second: Side, pairs: int) -> Timing:
    comparison = Comparison(folder=bench.task_folder(state), first=first, second=second, max_pairs=pairs)
    return bench.executor.compare(comparison).result()


def _trial(
    state: TaskState, proposal: Proposal, verdict: Verdict, ruling: Ruling, number: int, commit: str, seconds: float
) -> Trial:
    task, timing = state.task, verdict.timing
    interval = timing if timing is not None and timing.pairs > 1 else None  # one pair has none
    latency = timing.candidate_us if timing is not None else None
    eager, inductor = verdict.baselines.get("eager"), verdict.baselines.get("inductor")
    return Trial(
        experiment=number,
        tag=task.id.partition("-")[2] or task.id,
        kernel_type=task.kind,
        throughput_tflops=_round(task.flops / latency / 1e6) if latency and task.flops else None,
        latency_us=_round(latency),
        pct_peak=_round(timing.pct_of_ceiling) if timing is not None else None,
        speedup_vs_pytorch=_round(eager.speedup) if eager is not None else None,
        # what was dropped as too slow has failed nothing; its reason says that only the smoke stage was run
        correctness="PASS" if verdict.reason is Reason.too_slow else _WORDS[verdict.verdict],
        peak_vram_mb=_round(verdict.peak_memory / 2**20) if verdict.peak_memory else None,
        description=proposal.hypothesis or proposal.schedule or "",
        task=task.id,
        decision=ruling.decision,
        reason=ruling.reason,
        speedup_vs_incumbent=_round(timing.speedup) if timing is not None else None,
        ci_low=_round(interval.ci_low) if interval is not None else None,
        ci_high=_round(interval.ci_high) if interval is not None else None,
        speedup_vs_compile=_round(inductor.speedup) if inductor is not None else None,
        commit=commit,
        proposer=proposal.author,
        tokens=proposal.tokens,
        cost_usd=proposal.cost_usd,
        seconds=round(seconds, 3),
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _in_words(verdict: Verdict) -> str:
    if verdict.timing is not None:
        return f"{verdict.timing.speedup:.3g}× the incumbent"
    return f"{verdict.verdict.value} at {verdict.stage.value}: {verdict.reason.value}"


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
