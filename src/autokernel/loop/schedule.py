"""Which task next: pure Amdahl arithmetic on what the journal says. Imports neither torch nor numpy.

The task with the highest expected end-to-end gain for the next minute of budget:

    share of the model's time now × expected gain of one experiment × 60 / seconds of one experiment

A task that has had no experiment goes first (breadth before depth), in the order of recoverable time. A task is left
for a later *round* after a plateau (five reverts in a row), at its part of the budget, or when its author expects
nothing that pays; it comes back when all others are as far, and for good only when it is at 97 % of the ceiling or its
author has nothing more. Every pick carries its reason as a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PLATEAU = 5  # reverts in a row
AT_CEILING = 97.0  # percent
PAYS = 2e-4  # expected end-to-end gain of a minute below which a task waits for the others
PRIOR_FRACTION = 0.25  # of the recoverable time, expected of an experiment nothing is known about
RECENT = 5  # experiments that expectations are made of


@dataclass(frozen=True)
class TaskView:
    """One task as the scheduler sees it; everything comes from the profile, the journal, or the author."""

    id: str
    share: float  # of the model's time when profiled, all occurrences
    recoverable: float  # fraction of the task's own time above its floor when profiled
    speedup: float = 1.0  # of the incumbent against PyTorch: what is left of the share is share / speedup
    pct_of_ceiling: float | None = None  # of the incumbent, 0 to 100
    experiments: int = 0
    reverts_in_row: int = 0
    recent_gains: tuple[float, ...] = ()  # relative gain of each of the last experiments, 0 for a reverted one
    seconds: float = 5.0  # expected of the next experiment
    spent: float = 0.0
    allowance: float | None = None  # seconds this task may take while others wait
    outlook: float | None = None  # the author's own expectation for the next experiment (0.05: 5 %)
    exhausted: str | None = None  # why its author has nothing more


@dataclass(frozen=True)
class Pick:
    """`task` None: nothing is worth doing or fits; `reason` says why."""

    task: str | None
    reason: str


def expected_gain(view: TaskView) -> float:
    """Expected relative gain of the next experiment, never more than what lies above the floor."""
    ceiling = headroom(view)
    if view.outlook is not None:
        return max(0.0, min(view.outlook, ceiling))
    # the prior weighs as much as one experiment, so that the first results already speak
    prior = PRIOR_FRACTION * ceiling
    recent = view.recent_gains[-RECENT:]
    return min(ceiling, (prior + sum(recent)) / (1 + len(recent)))


def headroom(view: TaskView) -> float:
    """Fraction of the task's present time that lies above its floor."""
    if view.pct_of_ceiling is not None:
        return max(0.0, 1.0 - view.pct_of_ceiling / 100.0)
    return max(0.0, 1.0 - (1.0 - view.recoverable) * view.speedup)


def gain_per_minute(view: TaskView) -> float:
    """Expected fraction of the whole model's time that a minute on this task saves."""
    return view.share / max(view.speedup, 1e-9) * expected_gain(view) * 60.0 / max(view.seconds, 1e-3)


def finished(view: TaskView) -> str | None:
    """Why nothing more is to be done here, or None."""
    if view.exhausted is not None:
        return view.exhausted
    if view.pct_of_ceiling is not None and view.pct_of_ceiling >= AT_CEILING:
        return f"at {view.pct_of_ceiling:.0f} % of the ceiling"
    return None


def rounds(view: TaskView) -> tuple[int, str]:
    """How often the task was left for later, and why the last time."""
    count, why = view.reverts_in_row // PLATEAU, f"{view.reverts_in_row} reverts in a row"
    if view.outlook is not None and view.experiments:
        # a search knows what it has not tried yet: reverts alone say little, an outlook that can't pay says it
        count, why = (1, f"what is left can't pay (expects {100 * view.outlook:.2g} %)") if _idle(view) else (0, "")
    if view.allowance is not None and view.spent >= view.allowance > 0:
        count, why = count + int(view.spent // view.allowance), f"its budget of {view.allowance:.0f} s is spent"
    return count, why


def pick(views: Sequence[TaskView], remaining_seconds: float) -> Pick:
    """The next task among `views`, or none with the reason."""
    done = {view.id: why for view in views if (why := finished(view)) is not None}
    open_ = [view for view in views if view.id not in done]
    if not open_:
        return Pick(None, _all_done(done))
    fitting = [view for view in open_ if view.seconds <= remaining_seconds]
    if not fitting:
        least = min(view.seconds for view in open_)
        return Pick(None, f"no experiment fits: {remaining_seconds:.1f} s are left, the shortest takes {least:.1f} s")
    fresh = [view for view in fitting if view.experiments == 0]
    if fresh:
        return _first_visit(fresh)
    return _deepen(fitting)


def _first_visit(fresh: list[TaskView]) -> Pick:
    best = max(fresh, key=lambda view: (view.share * view.recoverable, view.share))
    waiting = f", {len(fresh) - 1} more wait for theirs" if len(fresh) > 1 else ""
    return Pick(
        best.id,
        f"first experiment on {best.id}: {100 * best.share:.1f} % of the model's time, "
        f"{100 * best.share * best.recoverable:.1f} % recoverable{waiting}",
    )


def _deepen(fitting: list[TaskView]) -> Pick:
    left = {view.id: rounds(view) for view in fitting}
    lowest = min(count for count, _ in left.values())
    ranked = sorted(
        (view for view in fitting if left[view.id][0] == lowest), key=lambda view: (-gain_per_minute(view), view.id)
    )
    best = ranked[0]
    reason = (
        f"{best.id} promises most: {100 * best.share / best.speedup:.1f} % of the model's time, "
        f"{100 * expected_gain(best):.2g} % expected of an experiment of {best.seconds:.1f} s"
    )
    if len(ranked) > 1:
        reason += f" ({_percent_a_minute(best)} a minute; next {ranked[1].id}, {_percent_a_minute(ranked[1])})"
    elif lowest > 0:
        reason += f"; back to it although {left[best.id][1]}, the others have dried up"
    waiting = [f"{name} ({why})" for name, (count, why) in left.items() if count > lowest]
    if waiting:
        reason += f"; left for later: {', '.join(waiting)}"
    return Pick(best.id, reason)


def _percent_a_minute(view: TaskView) -> str:
    return f"{100 * gain_per_minute(view):.2g} %"


def _idle(view: TaskView) -> bool:
    return gain_per_minute(view) < PAYS


def _all_done(done: dict[str, str]) -> str:
    if not done:
        return "there is no task"
    return "every task is finished: " + "; ".join(f"{name}: {why}" for name, why in done.items())
