"""The built-in author: generated kernels, and a search over their schedules. No network, no language model.

The space of a task (`generate.schedules`) is finite and ordered. The first proposal is the fastest of its first few
schedules, each asked after with one short evaluation, since judging a kernel to the end costs as much as ten of those.
Every later one is the untried schedule that an additive model of the trials so far expects most of: each choice that
differs from the best schedule has an effect on the logarithm of the speed, fitted by ridge regression, and choices
never tried get the benefit of the doubt. Schedules near the best one are preferred, since effects add up well only
nearby. Nothing is remembered outside the brief, so a resumed search goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from autokernel.errors import EvaluationsSpent, NotGenerated
from autokernel.generate import Schedule, TritonSchedule
from autokernel.generate.space import Space
from autokernel.propose import EVALUATION, Brief
from autokernel.propose.wording import hypothesis
from autokernel.records import Decision, Proposal, Trial, Verdict

AnySchedule = Schedule | TritonSchedule
LANGUAGES = {"cpu": "cpp", "cuda": "triton"}  # by device class
FIRST_GAIN = 0.3  # expected of a task nobody has touched: what generated kernels mostly gain over eager
CURIOSITY = 0.04  # log-speed credited to a choice that has not been tried yet
STEP = 0.015  # log-speed debited for each further choice that differs from the best schedule
PAYS = 0.004  # expected gain below which the search ends
FAILED = -0.7  # log-speed credited to a schedule that was not accepted
RIDGE = 0.1
OPENING = 5  # schedules that a task's first proposal is chosen from
PATIENCE = 6  # refused kernels, with none accepted, after which a task is given up


class _Known:
    """The schedules that are in play for a task, with their files. Grows around each schedule that was best once."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.sources: dict[AnySchedule, str] = {}
        self.by_hash: dict[str, AnySchedule] = {}
        self._codes: set[str] = set()
        self._grown: set[AnySchedule] = set()
        for schedule in space.first():
            self._add(schedule)

    def grow(self, best: AnySchedule) -> None:
        if best not in self._grown:
            self._grown.add(best)
            for schedule in self.space.neighbours(best):
                self._add(schedule)

    def _add(self, schedule: AnySchedule) -> None:
        code = self.space.code(schedule)
        if code not in self._codes:
            self._codes.add(code)
            self.sources[schedule] = self.space.source(schedule)
            self.by_hash[_sha256(self.sources[schedule])] = schedule


@dataclass(frozen=True)
class _Next:
    schedule: AnySchedule
    expected: float  # log-speed against the best so far
    base: AnySchedule | None  # what it is a variation of
    words: str = ""  # instead of saying what differs from `base`


class SearchProposer:
    """Search over the generator's schedules. Deterministic: of schedules that promise the same, the earlier one."""

    name = "search"

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str, str, int], _Known | None] = {}  # a cache: all of it follows from the brief

    def propose(self, brief: Brief, evaluate: Callable[[str], Verdict]) -> Proposal | None:
        """The untried schedule that promises most; None when nothing is left that could pay."""
        known = self._known(brief)
        if known is None:
            return None
        chosen = _opening(brief, known, evaluate) or _next(brief, known)
        if chosen is None:
            return None
        return Proposal(
            source=known.sources[chosen.schedule],
            language=known.space.language,
            author=self.name,
            hypothesis=chosen.words or hypothesis(chosen.schedule, chosen.base),
            predicted_gain=round(math.expm1(max(chosen.expected, 0.0)), 4),
            schedule=str(chosen.schedule),
        )

    def observe(self, task: str, trial: Trial) -> None:
        """Nothing to remember: the brief tells all."""

    def upcoming(self, brief: Brief, count: int) -> list[str]:
        """Sources likely to be asked for next, likeliest first, so that they can be compiled ahead. At most `count`."""
        known = self._known(brief)
        if known is None or count <= 0:
            return []
        seen = set(brief.sources)
        first = [s for s in list(known.sources)[:OPENING] if _opens(brief) and _sha256(known.sources[s]) not in seen]
        ranked, _ = _ranked(brief, known)
        order = dict.fromkeys([*first, *(schedule for _, schedule in ranked)])
        return [known.sources[schedule] for schedule in list(order)[:count]]

    def outlook(self, brief: Brief) -> float | None:
        """Expected relative gain of the next experiment: the model's, tempered by what the last ones brought."""
        if not brief.history:
            return FIRST_GAIN if brief.floor_us is None or brief.share > 0 else 0.0
        known = self._known(brief)
        chosen = _next(brief, known) if known is not None else None
        if chosen is None:
            return 0.0
        recent = [max((t.speedup_vs_incumbent or 1.0) - 1.0, 0.0) if t.decision is Decision.kept else 0.0
                  for t in brief.history[-5:]]  # fmt: skip
        misses = next((k for k, gain in enumerate(reversed(recent)) if gain), len(recent))
        promised = math.expm1(max(chosen.expected, 0.0)) * 0.8**misses
        return 0.5 * promised + 0.5 * sum(recent) / len(recent)

    def _known(self, brief: Brief) -> _Known | None:
        """None: the generator can't write this task, which stays for another author."""
        task = brief.task.task
        key = (task.id, task.fingerprint, task.shape_key, brief.threads)
        if key not in self._tasks:
            self._tasks[key] = None
            if task.device_class in LANGUAGES:
                language = LANGUAGES[task.device_class]
                with contextlib.suppress(NotGenerated):
                    self._tasks[key] = _Known(Space(task, brief.task.module, language, brief.threads))
        return self._tasks[key]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _opens(brief: Brief) -> bool:
    """Nothing was proposed for this task yet."""
    return all(trial.reason.startswith(EVALUATION) for trial in brief.history)


def _opening(brief: Brief, known: _Known, evaluate: Callable[[str], Verdict]) -> _Next | None:
    """Before a task's first proposal: the fastest of its first schedules. None once there was one, or if none is right.

    Evaluations are in the journal, so a resumed opening asks only for what is missing.
    """
    if not _opens(brief):
        return None
    speeds = {
        known.by_hash[source]: trial.speedup_vs_incumbent
        for trial, source in zip(brief.history, brief.sources, strict=True)
        if source in known.by_hash
    }
    for schedule in list(known.sources)[:OPENING]:
        if schedule in speeds:
            continue
        try:
            verdict = evaluate(known.sources[schedule])
        except EvaluationsSpent:
            break
        speeds[schedule] = verdict.timing.speedup if verdict.timing is not None else None
    measured = {schedule: speed for schedule, speed in speeds.items() if speed is not None}
    if not measured:
        return None
    best = max(measured, key=lambda schedule: measured[schedule])
    words = f"fastest of {len(measured)} in short runs: {best}"
    return _Next(best, math.log(measured[best]), None, words)


def _next(brief: Brief, known: _Known) -> _Next | None:
    """The choice of `propose`, and what it is expected to bring."""
    ranked, base = _ranked(brief, known)
    if not ranked or ranked[0][0] < PAYS:
        return None
    return _Next(ranked[0][1], ranked[0][0], base)


def _ranked(brief: Brief, known: _Known) -> tuple[list[tuple[float, AnySchedule]], AnySchedule | None]:
    """Untried schedules with what they promise, best first (none where the task is given up), and what they vary."""
    scores = log_speeds(brief.history, brief.sources, known.by_hash, known.grow)
    seen = set(brief.sources)
    left = [schedule for source, schedule in known.by_hash.items() if source not in seen]
    if not scores:
        return [(math.log1p(FIRST_GAIN), schedule) for schedule in left], None
    best = max(scores, key=lambda schedule: scores[schedule])
    if scores[best] <= FAILED:
        return [(PAYS, schedule) for schedule in left if len(scores) < PATIENCE], None
    model = Effects(scores, best)
    promises = [(model.promise(schedule), schedule) for schedule in left]
    return sorted(promises, key=lambda entry: -entry[0]), best  # stable: of equal ones, the earlier


class Effects:
    """log-speed against the best schedule ≈ Σ, over the choices that differ from it, of that choice's effect."""

    def __init__(self, scores: dict[AnySchedule, float], best: AnySchedule) -> None:
        self.best = best
        tried = dict.fromkeys(choice for schedule in scores for choice in self._changes(schedule))
        self.columns = {choice: k for k, choice in enumerate(tried)}
        rows = np.array([self._row(schedule) for schedule in scores]).reshape(len(scores), len(self.columns))
        target = np.array([score - scores[best] for score in scores.values()])
        gram = rows.T @ rows + RIDGE * np.eye(len(self.columns))
        self.effects = np.linalg.solve(gram, rows.T @ target)

    def _changes(self, schedule: AnySchedule) -> list[tuple[str, object]]:
        """The choices of a schedule that are not the best one's."""
        values = [(f.name, getattr(schedule, f.name)) for f in fields(schedule)]
        return [(axis, value) for axis, value in values if value != getattr(self.best, axis)]

    def _row(self, schedule: AnySchedule) -> np.ndarray:
        row = np.zeros(len(self.columns))
        for choice in self._changes(schedule):
            if choice in self.columns:
                row[self.columns[choice]] = 1.0
        return row

    def promise(self, schedule: AnySchedule) -> float:
        """Expected log-speed of a schedule against the best one, with the benefit of the doubt."""
        changes = self._changes(schedule)
        new = any(choice not in self.columns for choice in changes)
        return float(self._row(schedule) @ self.effects) + CURIOSITY * new - STEP * (len(changes) - 1)


def log_speeds(
    history: tuple[Trial, ...],
    sources: tuple[str, ...],
    known: dict[str, AnySchedule],
    grow: Callable[[AnySchedule], None] = lambda best: None,
) -> dict[AnySchedule, float]:
    """Log of each tried schedule's speed, relative to the first incumbent: each was measured against the incumbent of
    its time, and every kept one moved that. Trials that were not accepted count as slow.

    `grow` is called with each schedule that became the best one, before the trials that followed are looked up: they
    may be neighbours of it.
    """
    level, best = 0.0, FAILED
    found: dict[AnySchedule, float] = {}
    for trial, source in zip(history, sources, strict=True):
        speed = math.log(trial.speedup_vs_incumbent) if trial.speedup_vs_incumbent else None
        schedule = known.get(source)
        if schedule is not None:
            found[schedule] = FAILED if trial.correctness != "PASS" or speed is None else level + speed
            if found[schedule] > best:
                best = found[schedule]
                grow(schedule)
        if trial.decision is Decision.kept and speed is not None:
            level += speed
    return found
