"""What a report is given, and the arithmetic over it.

A task's gain is that of its last kept kernel against the task's *first* incumbent, measured side by side: the verdict
of a kept kernel holds it. Where it does not, the gain is the product of the gains of the experiments that were kept,
since each was measured against the incumbent it replaced; the interval of the product adds the logarithmic half-widths
in quadrature, for the pairs of two experiments are independent. (Rejected: dividing latencies of different experiments,
which were measured at different times on a machine that drifts.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autokernel.records import Decision, Profile, Proof, RunConfig, SameAgainstSame, Task, Trial, Verdict


@dataclass(frozen=True)
class RunView:
    """A run as its records tell it. All that does not exist yet is empty: a live run has no proof."""

    path: Path | None = None
    config: RunConfig | None = None
    profile: Profile | None = None
    tasks: tuple[Task, ...] = ()
    trials: tuple[Trial, ...] = ()
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)  # by experiment; those of kept ones are enough
    proof: Proof | None = None
    owner: str | None = None  # who works on it now; None: nobody
    trials_of_same: tuple[SameAgainstSame, ...] = ()  # in the order of the experiments


@dataclass(frozen=True)
class Gain:
    """A speedup (old time / new time; above 1 is faster) and its interval; without one when it was not recorded."""

    speedup: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Standing:
    """One task's experiments so far."""

    task: str
    title: str
    experiments: int
    correct: int
    kept: int
    gain: Gain | None  # against the first incumbent; None when nothing was kept


def product(gains: Iterable[Gain]) -> Gain | None:
    """The gain of several replacements in a row; None of none. One unknown interval makes the product's unknown."""
    found = list(gains)
    if not found:
        return None
    total = math.prod(gain.speedup for gain in found)
    below = _quadrature([(gain.speedup, gain.low) for gain in found])
    above = _quadrature([(gain.high, gain.speedup) for gain in found])
    return Gain(
        total,
        None if below is None else total * math.exp(-below),
        None if above is None else total * math.exp(above),
    )


def _quadrature(ratios: Sequence[tuple[float | None, float | None]]) -> float | None:
    total = 0.0
    for upper, lower in ratios:
        if not upper or not lower or lower <= 0:
            return None
        total += math.log(upper / lower) ** 2
    return math.sqrt(total)


def gain_of(trials: Iterable[Trial], verdicts: Mapping[int, Verdict]) -> Gain | None:
    """Gain of one task against its first incumbent; None when nothing was kept or its speedup was not recorded."""
    kept = [trial for trial in trials if trial.decision is Decision.kept]
    if kept and (direct := _side_by_side(verdicts.get(kept[-1].experiment))):
        return direct
    return product(
        Gain(trial.speedup_vs_incumbent, trial.ci_low, trial.ci_high) for trial in kept if trial.speedup_vs_incumbent
    )


def _side_by_side(verdict: Verdict | None) -> Gain | None:
    if verdict is None or verdict.first_incumbent is None:
        return None
    timing = verdict.baselines.get(verdict.first_incumbent)
    return Gain(timing.speedup, timing.ci_low, timing.ci_high) if timing else None


def standings(view: RunView) -> tuple[Standing, ...]:
    """One line a task, in the order of the tasks; tasks that only the journal knows come last."""
    titles = {task.id: task.title for task in view.tasks}
    grouped: dict[str, list[Trial]] = {task.id: [] for task in view.tasks}
    for trial in view.trials:
        grouped.setdefault(trial.task, []).append(trial)
    return tuple(
        Standing(
            task=name,
            title=titles.get(name, name),
            experiments=len(trials),
            correct=sum(trial.correctness == "PASS" for trial in trials),
            kept=sum(trial.decision is Decision.kept for trial in trials),
            gain=gain_of(trials, view.verdicts),
        )
        for name, trials in grouped.items()
    )


def model_gain(profile: Profile | None, gains: dict[str, float]) -> float | None:
    """Estimated speedup of the whole model when each task's share of the time shrinks by its gain (Amdahl's law).

    A kernel behind its first incumbent is not installed and costs nothing. None without a profile, or when the profile
    does not name the tasks yet.
    """
    if profile is None or not any(row.task for row in profile.regions):
        return None
    left = 1.0
    for row in profile.regions:
        if row.task in gains:
            left -= row.share * (1 - 1 / max(1.0, gains[row.task]))
    return 1 / max(left, 1e-9)
