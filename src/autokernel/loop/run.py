"""The loop: pick ▸ propose ▸ judge ▸ decide ▸ record, until the budget, the authors or the user end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autokernel.errors import AutokernelError, EvaluationsSpent, JudgeUnsound, NotComputable, NotTimed, SandboxDied
from autokernel.execute import Executor
from autokernel.judge.thresholds import LEAST_CAP, MOST_CAP
from autokernel.loop import Budget, LoopResult, noise, wording
from autokernel.loop.experiment import Bench, experiment, first_incumbent
from autokernel.loop.folder import RunFolder
from autokernel.loop.schedule import Pick, pick
from autokernel.loop.signals import StopFlag, Stopped, caught
from autokernel.loop.state import TaskState, restore
from autokernel.propose import Proposer
from autokernel.records import Decision, Profile, Proposal, Verdict
from autokernel.task import LoadedTask

EVALUATIONS = 8  # an author may ask for in one proposal
REPEATS = 3  # proposals in a row that were tried before: the author has nothing new
AHEAD = 6  # kernels of one task that compilers work on ahead of judging
TASK_PART = 0.5  # of the budget that one task may take while others wait


def run_loop(
    folder: RunFolder,
    tasks: Mapping[str, LoadedTask],
    profile: Profile,
    proposer: Proposer,
    executor: Executor,
    *,
    budget: Budget,
    say: Callable[[str], None],
    stop: StopFlag | None = None,
) -> LoopResult:
    """Run experiments on `tasks` (id → task) in a folder open for writing.

    `say` is given one line at a time. A signal (or `stop.stop()` from another thread) gives up the experiment in flight
    and leaves a resumable run. Raises what makes every verdict worthless (SandboxDied, JudgeUnsound, GitFailed).
    """
    stop = StopFlag() if stop is None else stop  # a flag that is not set is false
    most_pairs = _most_pairs(budget, any(loaded.task.device_class == "cuda" for loaded in tasks.values()))
    session = _Session(
        bench=Bench(
            folder=folder,
            executor=executor,
            stop=stop,
            limits=noise.limits(folder, most_pairs),
            author=proposer.name,
            say=say,
            most_pairs=most_pairs,
        ),
        states={name: restore(folder, loaded, profile) for name, loaded in tasks.items()},
        proposer=proposer,
        budget=budget,
    )
    with caught(stop):
        ended = session.run()
    result = session.result(ended)
    say(wording.ending(result, folder.path))
    return result


def _most_pairs(budget: Budget, on_gpu: bool) -> int:
    """8 to 40: one test should not take more than a thirtieth of the budget.

    A pair takes half a second; on a GPU three times as long, but there 12 pairs are few enough for any budget.
    """
    if budget.seconds is None:
        return MOST_CAP
    least, a_pair = (LEAST_CAP, 1.5) if on_gpu else (8, 0.5)
    return max(least, min(MOST_CAP, round(budget.seconds / 30 / a_pair)))


@dataclass
class _Session:
    bench: Bench
    states: dict[str, TaskState]
    proposer: Proposer
    budget: Budget
    started: float = field(default_factory=time.monotonic)
    experiments: int = 0
    kept: int = 0
    last_pick: str | None = None
    last_evaluation: float = 0.0
    outlooks: dict[str, tuple[int, float | None]] = field(default_factory=dict)  # task → trials then, answer

    def run(self) -> str:
        """Until something ends it; returns what, as a sentence."""
        try:
            for state in self.states.values():
                self._prefetch(state)
            self._first_incumbents()
            self.started = time.monotonic()
            while True:
                with self.bench.stop.interruptible():
                    picked = self._pick()
                if picked.task is None:
                    return picked.reason
                if self._experiments_used():
                    return f"the budget of {self.budget.experiments} experiments is used"
                if picked.task != self.last_pick:
                    self.bench.say(f"  → {picked.reason}")
                    self.last_pick = picked.task
                self._step(self.states[picked.task])
        except Stopped:
            return f"stopped by {self.bench.stop.reason}"

    def _first_incumbents(self) -> None:
        """What each task's kernels have to beat, before the budget's clock starts: like all baselines, not its cost."""
        wanted = [state for state in self.states.values() if state.first is None and self._outlook(state)]
        if self.budget.seconds is not None and self.budget.seconds <= 0:
            return
        for number, state in enumerate(wanted, start=1):
            if self._has_baseline(state) and state.first is not None:
                self.bench.say(f"  baseline {number}/{len(wanted)} {state.task.id}: {wording.first(state.first)}")
                with self.bench.stop.interruptible():
                    noise.begin(self.bench, state)

    def _has_baseline(self, state: TaskState) -> bool:
        """Whether there is something to beat; a task without waits for another session."""
        try:
            with self.bench.stop.interruptible():
                first_incumbent(self.bench, state)
        except (NotTimed, NotComputable) as error:
            state.exhausted = f"no baseline: {error}"
            self.bench.say(f"  {state.task.id}: {state.exhausted}")
            return False
        return True

    def result(self, ended: str) -> LoopResult:
        winners = tuple(name for name, state in self.states.items() if state.speedup() > 1.0)
        seconds = time.monotonic() - self.started
        return LoopResult(self.experiments, self.kept, winners, seconds, ended, self.bench.stop.reason)

    def _remaining(self) -> float:
        if self.budget.seconds is None:
            return float("inf")
        return self.budget.seconds - (time.monotonic() - self.started)

    def _experiments_used(self) -> bool:
        return self.budget.experiments is not None and self.experiments >= self.budget.experiments

    def _pick(self) -> Pick:
        several = len(self.states) > 1 and self.budget.seconds is not None
        allowance = self.budget.seconds * TASK_PART if several and self.budget.seconds else None
        views = []
        for state in self.states.values():
            others = [other for other in self.states.values() if other is not state]
            views.append(state.view(self._outlook(state), others, allowance))
        return pick(views, self._remaining())

    def _outlook(self, state: TaskState) -> float | None:
        if state.exhausted:
            return None
        known = self.outlooks.get(state.task.id)
        if known is not None and known[0] == len(state.trials):
            return known[1]  # nothing new was learned of this task since it was asked
        try:
            outlook = self.proposer.outlook(state.brief())
            self.outlooks[state.task.id] = (len(state.trials), outlook)
            return outlook
        except Exception as error:  # as in _propose
            state.exhausted = f"{self.proposer.name} failed with {type(error).__name__}: {error}"
            self.bench.say(f"  {state.task.id}: {state.exhausted}")
            return None

    def _step(self, state: TaskState) -> None:
        started = time.monotonic()
        if not self._has_baseline(state):
            return
        self._prefetch(state)
        proposal = self._propose(state, started)
        if proposal is None:
            self.bench.say(f"  {state.task.id}: {state.exhausted}" if state.exhausted else f"  {state.task.id}: again")
            return
        began = max(started, self.last_evaluation)  # the author's evaluations are trials with seconds of their own
        trial, verdict = experiment(self.bench, state, proposal, started=began)
        self.proposer.observe(state.task.id, trial)
        self._count(trial.decision)
        self.bench.say(wording.progress(trial, verdict, self.states.values()))
        if noise.due(trial.experiment) and state.incumbent is not None and not self.bench.stop:
            with self.bench.stop.interruptible():
                noise.same_against_same(self.bench, state, trial.experiment)

    def _prefetch(self, state: TaskState) -> None:
        """Compilers begin on what the author is likely to propose, so that judging doesn't wait for them."""
        upcoming = getattr(self.proposer, "upcoming", None)
        if upcoming is not None and state.exhausted is None:
            sources = upcoming(state.brief(), AHEAD)
            self.bench.executor.prefetch(self.bench.task_folder(state), sources)

    def _count(self, decision: Decision) -> None:
        self.experiments += 1
        self.kept += decision is Decision.kept

    def _propose(self, state: TaskState, started: float) -> Proposal | None:
        """The author's next candidate. None: it has nothing (`state.exhausted` says why), or only what was tried."""
        try:
            with self.bench.stop.interruptible():
                proposal = self.proposer.propose(state.brief(), self._evaluator(state, started))
        except (SandboxDied, JudgeUnsound):
            raise
        except AutokernelError as error:
            state.exhausted = f"{self.proposer.name}: {error}"
            return None
        except Exception as error:  # an author is a plug-in: its failure costs its task this session, not the run
            state.exhausted = f"{self.proposer.name} failed with {type(error).__name__}: {error}"
            return None
        if proposal is None:
            state.exhausted = f"{self.proposer.name} has nothing more to try"
            return None
        if state.proposed(proposal.source):
            state.repeats += 1
            if state.repeats >= REPEATS:
                state.exhausted = f"{self.proposer.name} only repeats what was tried"
            return None
        state.repeats = 0
        return proposal

    def _evaluator(self, state: TaskState, started: float) -> Callable[[str], Verdict]:
        used = 0

        def evaluate(source: str) -> Verdict:
            nonlocal used, started
            if used >= EVALUATIONS or self._remaining() <= 0 or self._experiments_used():
                raise EvaluationsSpent(author=self.proposer.name, limit=used)
            used += 1
            proposal = Proposal(source=source, language="", author=self.proposer.name, hypothesis="author's evaluation")
            trial, verdict = experiment(self.bench, state, proposal, started=started, evaluation=True)
            started = self.last_evaluation = time.monotonic()
            self._count(trial.decision)
            self.bench.say(wording.progress(trial, verdict, self.states.values()))
            return verdict

        return evaluate
