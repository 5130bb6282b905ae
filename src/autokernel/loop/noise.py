"""The same kernel against itself: at the start of a run and every 25 experiments.

What differs is the device's noise. From its spread follow the limits that candidates meet (`judge.thresholds`). A
trial that shows a *difference* where there is none, surer than chance allows and large enough to be kept, says that
the device does what no spread tells: then a gain must be at least three times as large as what it claimed.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from autokernel.errors import AutokernelError, JudgeUnsound, SandboxDied
from autokernel.execute import Comparison, Side
from autokernel.judge.pairs import reach
from autokernel.judge.thresholds import MOST_CAP, Thresholds, spread_of_interval, thresholds
from autokernel.loop.experiment import Bench
from autokernel.loop.files import write_atomic
from autokernel.loop.folder import RunFolder
from autokernel.loop.state import TaskState
from autokernel.records import SameAgainstSame, Timing

EVERY = 25
_PAIRS = 8
_TIMES_CLAIM = 3.0
_CHANCE = 0.005  # of a trial that shows a difference where there is none; a run of 300 experiments makes 13


def due(experiment: int) -> bool:
    return experiment % EVERY == 0


def limits(folder: RunFolder, most_pairs: int = MOST_CAP) -> Thresholds:
    """What candidates meet, by the trials so far. `most_pairs`: what there is time for."""
    return from_trials(trials(folder), folder.config.min_gain, most_pairs)


def from_trials(found: Sequence[SameAgainstSame], min_gain: float | None, most_pairs: int = MOST_CAP) -> Thresholds:
    """The limits after these trials: by the median of their spreads, widened by those that showed a difference."""
    spreads = [spread for trial in found if (spread := _spread(trial.timing)) is not None]
    usual = thresholds(statistics.median(spreads) if spreads else None, min_gain=min_gain, most_pairs=most_pairs)
    claims = [claim(trial.timing) for trial in found]
    wide = [_TIMES_CLAIM * size for size in claims if size >= usual.min_gain]
    return dataclasses.replace(usual, min_gain=max([usual.min_gain, *wide]))


def claim(timing: Timing) -> float:
    """How much faster or slower a trial of the same against the same says it is; 0 where chance explains it."""
    spread = _spread(timing)
    if spread is None:
        return 0.0
    chance = reach(timing.pairs, _CHANCE / 2) * spread / math.sqrt(timing.pairs)
    return abs(timing.speedup - 1.0) if abs(math.log(timing.speedup)) > chance else 0.0


def trials(folder: RunFolder) -> tuple[SameAgainstSame, ...]:
    """Every trial of the run, in the order of the experiments."""
    paths = {int(path.stem.removeprefix("aa-")): path for path in (folder.path / "verdicts").glob("aa-*.json")}
    return tuple(SameAgainstSame.load(paths[number]) for number in sorted(paths))


def begin(bench: Bench, state: TaskState) -> None:
    """The run's first trial, on what the task has to beat; nothing where there was one."""
    if not trials(bench.folder):
        same_against_same(bench, state, 0)


def same_against_same(bench: Bench, state: TaskState, number: int) -> None:
    """Time the task's kernel (what it has to beat, if it has none) against itself, note it, and set the limits."""
    side = _side(state)
    comparison = Comparison(folder=bench.task_folder(state), first=side, second=side, max_pairs=_PAIRS)
    try:
        timing = bench.executor.compare(comparison).result()
    except (SandboxDied, JudgeUnsound):
        raise
    except AutokernelError as error:
        bench.say(f"  same against same on {state.task.id} could not be timed: {error}")
        return
    before = bench.limits.min_gain
    record = SameAgainstSame(task=state.task.id, timing=timing, min_gain_before=before, min_gain_after=before)
    after = from_trials([*trials(bench.folder), record], bench.folder.config.min_gain, bench.most_pairs)
    usual = thresholds(after.spread or None, min_gain=bench.folder.config.min_gain, most_pairs=bench.most_pairs)
    claimed = claim(timing) >= usual.min_gain
    record = record.model_copy(update={"min_gain_after": after.min_gain, "claimed": claimed})
    write_atomic(bench.folder.path / "verdicts" / f"aa-{number}.json", record.dump())
    bench.limits = after
    if claimed:
        bench.say(_widened(timing, after))
    elif not number:
        bench.say(_measured(after))


def _side(state: TaskState) -> Side:
    if state.incumbent is not None:
        return Side(kind="kernel", source=state.incumbent)
    return Side(kind=state.first.kind if state.first is not None else "eager")


def _spread(timing: Timing) -> float | None:
    return spread_of_interval(timing.ci_low, timing.ci_high, timing.pairs, timing.confidence)


def _widened(timing: Timing, after: Thresholds) -> str:
    ratio = f"{timing.speedup:.3f}× ({timing.ci_low:.3f}–{timing.ci_high:.3f})"
    return f"  the same against itself measured {ratio}: a gain must now be at least {100 * after.min_gain:.2g} %"


def _measured(after: Thresholds) -> str:
    return (
        f"  the same against itself: one pair repeats to {100 * after.spread:.2g} %, so a gain must be at least "
        f"{100 * after.min_gain:.2g} %, shown in at most {after.cap} pairs"
    )
