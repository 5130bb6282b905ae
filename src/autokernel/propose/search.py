"""The built-in author: generated kernels, and a search over their schedules. No network, no language model.

The space of a task (`generate.schedules`) is finite and ordered. The first proposal is its first guess; every later one
is the untried schedule that an additive model of the trials so far expects most of: each choice of each axis has an
effect on the logarithm of the speed, fitted by ridge regression, and choices never tried get the benefit of the doubt.
Schedules near the best one are preferred, since effects add up well only nearby. Nothing is remembered outside
the brief, so a resumed search goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from autokernel.errors import NotGenerated
from autokernel.generate import Schedule, schedules
from autokernel.propose import Brief
from autokernel.propose.wording import hypothesis
from autokernel.records import Decision, Proposal, Trial, Verdict

FIRST_GAIN = 0.3  # expected of a task nobody has touched: what generated kernels mostly gain over eager
CURIOSITY = 0.04  # log-speed credited to a choice that has not been tried yet
STEP = 0.015  # log-speed debited for each further choice that differs from the best schedule
PAYS = 0.004  # expected gain below which the search ends
FAILED = -0.7  # log-speed credited to a schedule that was not accepted
RIDGE = 0.5


@dataclass(frozen=True)
class _Space:
    order: tuple[Schedule, ...]
    sources: dict[Schedule, str]
    by_hash: dict[str, Schedule]


@dataclass(frozen=True)
class _Next:
    schedule: Schedule
    expected: float  # log-speed against the best so far
    base: Schedule | None  # what it is a variation of


class SearchProposer:
    """Search over the generator's schedules. `seed` breaks ties between schedules that promise the same."""

    name = "search"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._spaces: dict[tuple[str, str, str, int], _Space] = {}  # a cache: all of it follows from the brief's task

    def propose(self, brief: Brief, evaluate: Callable[[str], Verdict]) -> Proposal | None:
        """The untried schedule that promises most; None when nothing is left that could pay."""
        chosen = self._next(brief)
        if chosen is None:
            return None
        return Proposal(
            source=self._space(brief).sources[chosen.schedule],
            language="cpp",
            author=self.name,
            hypothesis=hypothesis(chosen.schedule, chosen.base),
            predicted_gain=round(math.expm1(max(chosen.expected, 0.0)), 4),
            schedule=str(chosen.schedule),
        )

    def observe(self, task: str, trial: Trial) -> None:
        """Nothing to remember: the brief tells all."""

    def outlook(self, brief: Brief) -> float | None:
        """Expected relative gain of the next experiment: the model's, tempered by what the last ones brought."""
        if not brief.history:
            return FIRST_GAIN if brief.floor_us is None or brief.share > 0 else 0.0
        chosen = self._next(brief)
        if chosen is None:
            return 0.0
        recent = [max((t.speedup_vs_incumbent or 1.0) - 1.0, 0.0) if t.decision is Decision.kept else 0.0
                  for t in brief.history[-5:]]  # fmt: skip
        misses = next((k for k, gain in enumerate(reversed(recent)) if gain), len(recent))
        promised = math.expm1(max(chosen.expected, 0.0)) * 0.8**misses
        return 0.5 * promised + 0.5 * sum(recent) / len(recent)

    # --- the space

    def _space(self, brief: Brief) -> _Space:
        from autokernel.generate.kernel_file import kernel_file
        from autokernel.generate.plan import plan

        task, module = brief.task.task, brief.task.module
        key = (task.id, task.fingerprint, task.shape_key, brief.threads)
        if key not in self._spaces:
            try:
                order = schedules(task, module, "cpp", brief.threads)
                planned = plan(module, task)
                sources = {schedule: kernel_file(task, planned, schedule) for schedule in order}
            except NotGenerated:
                order, sources = (), {}  # the task stays for another author
            by_hash = {hashlib.sha256(source.encode()).hexdigest(): s for s, source in sources.items()}
            self._spaces[key] = _Space(order, sources, by_hash)
        return self._spaces[key]

    # --- the choice

    def _next(self, brief: Brief) -> _Next | None:
        space = self._space(brief)
        if not space.order:
            return None
        seen = set(brief.sources)
        left = [s for s in space.order if hashlib.sha256(space.sources[s].encode()).hexdigest() not in seen]
        scores = log_speeds(brief.history, brief.sources, space.by_hash)
        if not scores:
            return _Next(left[0], math.log1p(FIRST_GAIN), None) if left else None
        best = max(scores, key=lambda schedule: scores[schedule])
        if scores[best] <= FAILED:
            return _Next(left[0], PAYS, None) if left and len(scores) < 6 else None
        model = Effects(space.order, scores)
        ranked = [(model.promise(s, best), -k, self._tie(s), s) for k, s in enumerate(left)]
        if not ranked:
            return None
        promise, _, _, schedule = max(ranked, key=lambda entry: entry[:3])
        return _Next(schedule, promise, best) if promise >= PAYS else None

    def _tie(self, schedule: Schedule) -> str:
        return hashlib.sha256(f"{self.seed} {schedule}".encode()).hexdigest()


class Effects:
    """log-speed ≈ Σ over axes of the effect of the choice made there."""

    def __init__(self, space: tuple[Schedule, ...], scores: dict[Schedule, float]) -> None:
        axes = [f.name for f in fields(Schedule)]
        self.choices = {axis: list(dict.fromkeys(getattr(s, axis) for s in space)) for axis in axes}
        self.columns = {(axis, value): 0 for axis in axes for value in self.choices[axis]}
        self.columns = {choice: k for k, choice in enumerate(self.columns)}
        self.scores = scores
        self.tried = {(axis, getattr(s, axis)) for s in scores for axis in axes}
        rows = np.array([self._row(s) for s in scores])
        target = np.array(list(scores.values()))
        self.mean = float(target.mean())
        gram = rows.T @ rows + RIDGE * np.eye(rows.shape[1])
        self.effects = np.linalg.solve(gram, rows.T @ (target - self.mean))

    def _row(self, schedule: Schedule) -> np.ndarray:
        row = np.zeros(len(self.columns))
        for axis in self.choices:
            row[self.columns[axis, getattr(schedule, axis)]] = 1.0
        return row

    def promise(self, schedule: Schedule, best: Schedule) -> float:
        """Expected log-speed of a schedule against the best one, with the benefit of the doubt."""
        gain = float((self._row(schedule) - self._row(best)) @ self.effects)
        changed = [axis for axis in self.choices if getattr(schedule, axis) != getattr(best, axis)]
        new = sum((axis, getattr(schedule, axis)) not in self.tried for axis in changed)
        return gain + CURIOSITY * min(new, 1) - STEP * (len(changed) - 1)


def log_speeds(
    history: tuple[Trial, ...], sources: tuple[str, ...], known: dict[str, Schedule]
) -> dict[Schedule, float]:
    """Log of each tried schedule's speed, relative to the first incumbent: each was measured against the incumbent of
    its time, and every kept one moved that. Trials that were not accepted count as slow."""
    level = 0.0
    found: dict[Schedule, float] = {}
    for trial, source in zip(history, sources, strict=True):
        speed = math.log(trial.speedup_vs_incumbent) if trial.speedup_vs_incumbent else None
        schedule = known.get(source)
        if schedule is not None:
            found[schedule] = FAILED if trial.correctness != "PASS" or speed is None else level + speed
        if trial.decision is Decision.kept and speed is not None:
            level += speed
    return found
