"""The lines a run prints: one an experiment, each with the best so far, and the last one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from autokernel.loop import LoopResult
from autokernel.loop.state import TaskState
from autokernel.records import Decision, FirstIncumbent, Timing, Trial, Verdict

_NAMES = {"eager": "eager", "inductor": "torch.compile"}


def progress(trial: Trial, verdict: Verdict, states: Iterable[TaskState]) -> str:
    """`#12 03-add-rms-norm  kept  1.34× (1.28–1.41) vs torch.compile · best so far: 3 winners, est. model −4.1 %`"""
    return f"#{trial.experiment} {trial.task}  {trial.decision.value}  {_what(trial, verdict)} · {best_so_far(states)}"


def best_so_far(states: Iterable[TaskState]) -> str:
    states = list(states)
    winners = sum(state.speedup() > 1.0 for state in states)
    if not winners:
        return "best so far: no winner yet"
    return f"best so far: {winners} winner{'s' * (winners != 1)}, est. model −{100 * estimated_saving(states):.1f} %"


def estimated_saving(states: Iterable[TaskState]) -> float:
    """Fraction of the model's time that the winners save if each keeps, inside the model, what it gains alone."""
    return sum(state.share * (1.0 - 1.0 / state.speedup()) for state in states)


def first(found: FirstIncumbent) -> str:
    """`eager 123 µs, torch.compile 98.1 µs`: what a task's kernels have to beat is the faster."""
    if found.timing is None:
        return f"{_NAMES[found.kind]} ({found.note})"
    return f"eager {found.timing.incumbent_us:.3g} µs, torch.compile {found.timing.candidate_us:.3g} µs"


def ending(result: LoopResult, run: Path) -> str:
    text = f"{result.experiments} experiments, {result.kept} kept, in {result.seconds:.0f} s: {result.ended}."
    if result.interrupted:
        text += f"\nNothing is lost. Go on with: autokernel resume {shlex.quote(_short(run))}"
    return text


def _what(trial: Trial, verdict: Verdict) -> str:
    first = verdict.first_incumbent
    if trial.decision is Decision.kept and first is not None and first in verdict.baselines:
        return f"{_ratio(verdict.baselines[first])} vs {_NAMES[first]}"
    return trial.reason


def _ratio(timing: Timing) -> str:
    return f"{timing.speedup:.2f}× ({timing.ci_low:.2f}–{timing.ci_high:.2f})"


def _short(path: Path) -> str:
    """Relative to where the user is, when that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
