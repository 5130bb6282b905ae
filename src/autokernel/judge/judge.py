"""The judge of one task: from a kernel's source to a verdict.

    check ▸ compile ▸ load ▸ smoke ▸ screen ▸ shapes ▸ stability ▸ determinism ▸ edges ▸ timing ▸ confirm ▸ sanitizer

The first failure ends it. Whatever the candidate does wrong is a verdict; exceptions are for what isn't its doing.
A candidate that is no faster in the screen is rejected as `too_slow`: right as far as it was looked at (smoke), not
worth the other stages. One that passes all stages is accepted, with the timing of the last comparison it went through:
the sequential one if that did not end in its favour, else the confirmation, on new values and new pairs.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from autokernel.errors import NotComputable, NotTimed
from autokernel.judge import Opponent, Request
from autokernel.judge.cases import Cases, serves
from autokernel.judge.children import ChildFailure, Kernel
from autokernel.judge.contest import (
    BELOW_FLOOR,
    Contest,
    exactly,
    impossible,
    keep_rule,
)
from autokernel.judge.kernels import Kernels
from autokernel.judge.pairs import screen
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.sanitizer import Sanitizer
from autokernel.judge.seeds import Seeds
from autokernel.judge.stages import Failed, Stages
from autokernel.judge.thresholds import confirm_pairs
from autokernel.judge.tolerance import figures
from autokernel.languages import CompileFailure, Language
from autokernel.records import (
    Ceilings,
    Outcome,
    Reason,
    Resources,
    Sanitized,
    Stage,
    StageResult,
    Timing,
    Verdict,
)
from autokernel.task import LoadedTask

FIXED_PAIRS = 8
NOT_SLOWER = 0.995  # as lower bound: what a shorter kernel may be kept at
MOST_SOURCE = 500_000  # characters; parsing more costs this process seconds and gigabytes
_AFTER_SCREEN = (Stage.shapes, Stage.stability, Stage.determinism, Stage.edges)

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory", "out_of_memory")

_COPIED = (
    "inputs and outputs were copied through host memory, since CUDA IPC is refused here: "
    "nothing could be changed or poisoned while a timed round ran"
)

OnStage = Callable[[StageResult], None]


class Judge:
    """Verdicts on kernels for one task. `on_stage` is told of every stage as it ends.

    `languages`: more kernel languages by name, beside the registered ones. `ceilings`: for the floor in timings.
    """

    def __init__(
        self,
        loaded: LoadedTask,
        sandbox: Sandbox,
        *,
        seeds: Seeds,
        ceilings: Ceilings | None = None,
        on_stage: OnStage | None = None,
        languages: Mapping[str, Language] | None = None,
    ) -> None:
        self.loaded, self.sandbox, self.on_stage = loaded, sandbox, on_stage
        self.ceilings = ceilings
        self.cases = Cases(loaded, seeds)
        self.kernels = Kernels(loaded, sandbox.cpp_cache, sandbox.threads, languages or {})
        self.sanitizer = Sanitizer(loaded.task, sandbox)
        self._contest: Contest | None = None

    def verdict(self, source: str, opponent: Opponent, request: Request | None = None) -> Verdict:
        """Judge a kernel file. Raises NoCompiler, SandboxDied; never anything of the candidate's."""
        return _Judging(self, source, opponent, request or Request()).run()

    def compare(self, first: Opponent, second: Opponent, *, pairs: int = 8, deadline: float = 30.0) -> Timing:
        """Time two sides, a fixed number of pairs; `speedup` is first / second. Raises NotTimed, NotComputable."""
        contest = self.contest(deadline)
        other = self.kernels.opponent(second)
        one = self.kernels.opponent(first, copies=other.kind == "model_new")
        trusted = second.kind != "kernel"
        try:
            measured, _ = contest.run(one, other, exactly(max(pairs, 2)), trusted_candidate=trusted)
        except ChildFailure as failure:
            detail = f"{failure.reason.replace('_', ' ')}: {failure.detail}"
            raise NotTimed(what=second.kind, task=self.loaded.task.id, detail=detail) from failure
        except (MemoryError, OSError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            contest.fresh_values()
            detail = f"this process ran out of memory while it made inputs or expected values ({error})"
            raise NotTimed(what=second.kind, task=self.loaded.task.id, detail=detail) from error
        return contest.timing(measured, 0.0, confirming=False)

    def rest(self) -> None:
        """Give up the timed buffers; they are made anew when needed."""
        if self._contest is not None and self._contest.on_gpu:
            self._contest.fresh_values()

    def contest(self, deadline: float) -> Contest:
        if self._contest is None:
            self._contest = Contest(self.cases, self.sandbox, deadline, self.ceilings)
        self._contest.deadline = deadline
        return self._contest


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there is no memory left: Python's, the kernel's, or torch's allocator's."""
    words = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(sign in words for sign in OUT_OF_MEMORY))
    )


def unreadable(source: str) -> str:
    """Why a text can't be a kernel file whatever it says; empty where it can."""
    if len(source) > MOST_SOURCE:
        return f"the file has {len(source):,} characters; {MOST_SOURCE:,} are the most that are read"
    try:
        source.encode()
    except UnicodeEncodeError as error:
        return f"the text is no Unicode: half of a surrogate pair at character {error.start}"
    return ""


class _Stop(Exception):
    """The verdict is settled."""

    def __init__(self, outcome: Outcome, stage: Stage, reason: Reason, explanation: str) -> None:
        super().__init__(explanation)
        self.outcome, self.stage, self.reason, self.explanation = outcome, stage, reason, explanation


class _Judging:
    """One verdict in the making."""

    def __init__(self, judge: Judge, source: str, opponent: Opponent, request: Request) -> None:
        self.judge, self.source, self.opponent, self.request = judge, source, opponent, request
        self.begin = time.monotonic()
        self.results: list[StageResult] = []
        self.warnings: list[str] = [_COPIED] if judge.sandbox.transport == "host" else []
        self.resources = Resources()
        self.sanitized: Sanitized | None = None
        self.timing: Timing | None = None
        self.stages: Stages | None = None
        self.stage = Stage.check

    def run(self) -> Verdict:
        try:
            self._judge()
            return self._verdict(Outcome.accepted, self.stage, Reason.ok, "")
        except _Stop as stop:
            return self._verdict(stop.outcome, stop.stage, stop.reason, stop.explanation)
        except (NotComputable, NotTimed) as error:
            return self._unjudged(str(error))
        except (MemoryError, OSError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self.stages = None
            self.judge.contest(self.request.deadline_seconds).fresh_values()
            detail = f"this process ran out of memory while it made inputs or expected values ({error})"
            return self._unjudged(str(NotComputable(task=self.judge.loaded.task.id, detail=detail)))

    def _unjudged(self, explanation: str) -> Verdict:
        self._ended("failed", time.monotonic(), explanation)
        return self._verdict(Outcome.error, self.stage, Reason.harness, explanation)

    def _judge(self) -> None:
        bounds = self._check()
        kernel = self._compile()
        deadline = self.request.deadline_seconds
        self.stages = Stages(self.judge.cases, self.judge.sandbox, kernel, bounds, deadline)
        self._correct(Stage.smoke)
        if self.request.level != "correctness" and self.request.drop_slow:
            self._screen(kernel)
        for stage in _AFTER_SCREEN:
            self._correct(stage)
        if self.request.level == "full":
            self._full_timing(kernel)
            if self.request.sanitize and self._could_be_kept():
                self._under_sanitizer(kernel, bounds)

    # --- before it runs -----------------------------------------------------------------------------------------------

    def _check(self) -> dict[str, tuple[int, int | None]]:
        begin = self._enter(Stage.check)
        if problem := unreadable(self.source):
            self._fail(begin, Reason.bad_source, problem)
        findings = self.judge.kernels.check(self.source)
        fatal = [finding for finding in findings if finding.fatal]
        if fatal:
            self._fail(begin, Reason.bad_source, "; ".join(f"line {one.line}: {one.message}" for one in fatal))
        bounds = serves(self.source, self.judge.loaded.task)
        if isinstance(bounds, str):
            self._fail(begin, Reason.bad_source, bounds)
        if self.judge.kernels.is_model(self.source):
            bounds = {}  # its parameters have the sizes of get_init_inputs()
        self.warnings += [f"line {finding.line}: {finding.message}" for finding in findings]
        self._ended("passed", begin)
        return bounds

    def _compile(self) -> Kernel:
        begin = self._enter(Stage.compile)
        try:
            kernel, self.resources = self.judge.kernels.build(self.source)
        except CompileFailure as failure:
            self._fail(begin, Reason.compile_error, failure.log)
        if kernel.note:
            self.warnings.append(kernel.note)
        self._ended("passed", begin)
        return kernel

    # --- is it right --------------------------------------------------------------------------------------------------

    def _correct(self, stage: Stage) -> None:
        assert self.stages is not None
        begin = self._enter(stage)
        try:
            result = self.stages.run(stage)
        except Failed as failure:
            if failure.loading and stage is Stage.smoke:
                self.stage = Stage.load
            self._fail(begin, failure.reason, failure.explanation)
        self._note(result)

    # --- is it faster -------------------------------------------------------------------------------------------------

    def _screen(self, kernel: Kernel) -> None:
        begin = self._enter(Stage.screen)
        spread = self.request.spread
        self.timing, passed = self._measure(
            kernel, lambda ratios: screen(ratios, spread), begin, confirming=False, quick=True
        )
        if not passed:
            blocks = "one block" if self.timing.pairs == 1 else f"{self.timing.pairs} blocks"
            words = f"correct so far (smoke), not faster: {self.timing.speedup:.3g}× {self._named()} in {blocks} each"
            self._fail(begin, Reason.too_slow, words)
        self._ended("passed", begin, f"{self.timing.speedup:.3g}×")

    def _full_timing(self, kernel: Kernel) -> None:
        begin = self._enter(Stage.timing)
        if not self.request.drop_slow:
            whole = self.opponent.kind != "kernel"  # against a kernel these pairs are a test, not its confirmation
            self.timing, _ = self._measure(kernel, exactly(FIXED_PAIRS), begin, confirming=whole)
            self._ended("passed", begin, f"{self.timing.speedup:.3g}× {self._named()} in {FIXED_PAIRS} pairs")
            self._both_caches(kernel)
            return
        rule = keep_rule(self.request.min_gain, self.request.max_pairs)
        self.timing, kept = self._measure(kernel, rule, begin, confirming=False)
        self._ended("passed", begin, f"{self.timing.speedup:.3g}× {self._named()} after {self.timing.pairs} pairs")
        if not kept:
            return
        begin = self._enter(Stage.confirm)
        self.judge.contest(self.request.deadline_seconds).fresh_values()
        count = confirm_pairs(self.timing.pairs, self.request.max_pairs)
        self.timing, _ = self._measure(kernel, exactly(count), begin, confirming=True)
        words = "confirmed" if self.timing.confirmed else "not confirmed"
        self._ended("passed", begin, f"{words}: {self.timing.speedup:.3g}× in {count} new pairs")
        self._both_caches(kernel)

    def _both_caches(self, kernel: Kernel) -> None:
        """On a GPU: which state of the cache the figures are for, and the time in the other one."""
        contest = self.judge.contest(self.request.deadline_seconds)
        if not contest.on_gpu or self.timing is None:
            return
        try:
            other = contest.other_cache_us(kernel)
        except ChildFailure as failure:
            self._fail(time.monotonic(), failure.reason, failure.detail)
        cache = "cold" if contest.cold else "warm"
        self.timing = self.timing.model_copy(update={"cache": cache, "other_cache_us": other})

    def _could_be_kept(self) -> bool:
        """Whether the loop may keep it: as a first kernel, as the faster one, or as a shorter one that isn't slower."""
        if not self.judge.contest(self.request.deadline_seconds).on_gpu or self.timing is None:
            return False
        first = self.opponent.kind != "kernel"
        return first or not self.request.drop_slow or self.timing.confirmed or self.timing.ci_low > NOT_SLOWER

    def _under_sanitizer(self, kernel: Kernel, bounds: dict[str, tuple[int, int | None]]) -> None:
        before = self.stage
        begin = self._enter(Stage.sanitizer)
        looked = self.judge.sanitizer.look(kernel, bounds, self.judge.cases.seed("sanitizer"))
        self.sanitized = looked.record
        self.warnings += looked.remarks
        if looked.reason is not None:
            self._fail(begin, looked.reason, looked.finding)
        if looked.record.not_run:
            self._ended("skipped", begin, looked.record.not_run)
            self.stage = before
            return
        self._ended("passed", begin, f"{' and '.join(looked.record.tools)} at {'; '.join(looked.record.sizes)}")

    def _measure(
        self,
        kernel: Kernel,
        rule: Callable[[Sequence[float]], str],
        begin: float,
        *,
        confirming: bool,
        quick: bool = False,
    ) -> tuple[Timing, bool]:
        """A timing, and whether `rule` ended it in the candidate's favour."""
        contest = self.judge.contest(self.request.deadline_seconds)
        opponent = self.judge.kernels.opponent(self.opponent, copies=kernel.kind == "model_new")
        try:
            measured, claim = contest.run(opponent, kernel, rule, quick=quick)  # type: ignore[arg-type]
        except ChildFailure as failure:
            self._fail(begin, failure.reason, failure.detail)
        timing = contest.timing(measured, self.request.min_gain, confirming=confirming)
        suspicion = impossible(timing, contest.impossible_us(), BELOW_FLOOR["cuda" if contest.on_gpu else "cpu"])
        if suspicion is Reason.time_impossible:
            words = f"{timing.candidate_us:.3g} µs is less than this machine needs to move the task's bytes"
            self._fail(begin, suspicion, words)
        if suspicion is not None:
            words = f"{timing.candidate_us:.3g} µs is far below the measured floor, {timing.floor_us:.3g} µs"
            self._fail(begin, suspicion, words, Outcome.suspect)
        if claim is not None:
            self._fail(begin, Reason.time_disagrees, claim, Outcome.suspect)
        self.warnings += contest.remarks
        return timing, rule([theirs / ours for theirs, ours in measured]) == "keep"

    def _named(self) -> str:
        return "the incumbent" if self.opponent.kind == "kernel" else self.opponent.kind

    # --- keeping the book ---------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> float:
        self.stage = stage
        return time.monotonic()

    def _ended(self, status: str, begin: float, detail: str = "") -> None:
        seconds = time.monotonic() - begin
        self._note(
            StageResult.model_validate({"name": self.stage, "status": status, "seconds": seconds, "detail": detail})
        )

    def _note(self, result: StageResult) -> None:
        self.results.append(result)
        if self.judge.on_stage is not None:
            self.judge.on_stage(result)

    def _fail(self, begin: float, reason: Reason, explanation: str, outcome: Outcome = Outcome.rejected) -> NoReturn:
        if reason is not Reason.too_slow:
            self.timing = None
        self._ended("failed", begin, explanation)
        raise _Stop(outcome, self.stage, reason, explanation)

    def _verdict(self, outcome: Outcome, stage: Stage, reason: Reason, explanation: str) -> Verdict:
        stages = self.stages
        return Verdict(
            task=self.judge.loaded.task.id,
            kernel_sha256=hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest(),
            device=self.judge.loaded.task.device_class,
            isolation=self.judge.sandbox.isolation,
            verdict=outcome,
            stage=stage,
            reason=reason,
            explanation=explanation,
            stages=tuple(self.results),
            error=figures(stages.comparisons) if stages is not None else None,
            timing=self.timing if outcome is not Outcome.error else None,
            kernels_launched=stages.launched if stages is not None else (),
            resources=self.resources,
            peak_memory=stages.peak_memory if stages is not None else 0,
            sanitizer=self.sanitized,
            warnings=tuple(dict.fromkeys([*self.warnings, *(stages.warnings if stages is not None else [])])),
            seconds=time.monotonic() - self.begin,
        )
