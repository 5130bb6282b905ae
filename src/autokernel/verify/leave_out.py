"""Does each winner pay inside the model? The model is timed with all of them and without each one, interleaved.

A kernel that wins alone may lose in the model: Inductor would have fused its region with a neighbour, or made fused
attention of a softmax between two matrix products. A winner is taken out when the model is probably faster without it
(an 80 % interval below 1: taking out is the careful side, it only gives Inductor its region back). What the noise hides
is kept, since it did win alone, and its row says so. The intervals that are reported are of 95 %. Rewritten attention
is treated like a winner: all of its places together, first, since it has not won anywhere yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autokernel.install import Winner
from autokernel.verify.device import wait_for
from autokernel.verify.interval import Interval
from autokernel.verify.speed import BLOCK_SECONDS, Wait, measure
from autokernel.verify.variants import Say, Variant, first_line, installed, ours
from autokernel.workload import Workload

ATTENTION = "attention"  # stands for a task's id; those begin with a number
TAKE_OUT_CONFIDENCE = 0.8
_ROUNDS = 24  # planned; more when time allows


@dataclass(frozen=True)
class InModel:
    """What was found of one winner: model time without it over time with it. None: not measured, and why."""

    gain: Interval | None
    note: str = ""
    deciding: Interval | None = None  # the same at TAKE_OUT_CONFIDENCE

    @property
    def pays(self) -> bool:
        return self.deciding is None or self.deciding.high >= 1


def leave_out(
    workload: Workload,
    winners: Sequence[Winner],
    full: Variant,
    *,
    left: Callable[[], float],
    say: Say,
    took: float = 0.0,
) -> dict[str, InModel]:
    """Task id (or ATTENTION) → what it does to the model. `left()`: seconds that may still be used here; `took`: those
    that building the full model took."""
    found: dict[str, InModel] = {}
    without: dict[str, Variant] = {}
    wait = wait_for(workload)
    longest, one = took, _seconds(full, wait)
    for name, rest, attention in _sets(winners, full):
        timing = _ROUNDS * (len(without) + 2) * max(one, BLOCK_SECONDS)
        if left() < timing + 1.5 * longest:
            found[name] = InModel(None, "not measured alone in the model: the time was used up")
            continue
        before = left()
        try:
            without[name] = ours(workload, rest, full.mode, f"without {name}", _quiet, attention)
        except Exception as error:  # a compiler's refusal of this set says nothing about the full one
            found[name] = InModel(None, f"not measured alone: {first_line(error)}")
            say(f"in the model without {name}: {found[name].note}")
            continue
        longest = max(longest, before - left())
        say(f"in the model without {name}: ready")
    if without:
        calls = {variant.name: variant.once for variant in (full, *without.values())}
        rounds = measure(calls, seconds=max(left(), 0.0), min_rounds=6, max_rounds=60, wait=wait)
        for name, variant in without.items():
            gain = rounds.ratio(variant.name, full.name)
            deciding = rounds.ratio(variant.name, full.name, TAKE_OUT_CONFIDENCE)
            found[name] = InModel(gain, _words(gain, deciding.high >= 1), deciding)
            say(f"{name} in the model: {found[name].note}")
    return found


def _sets(winners: Sequence[Winner], full: Variant) -> Iterator[tuple[str, list[Winner], bool]]:
    """What is in the full model, each with the set that has all but it: its name, winners, attention."""
    attention = bool(installed(full).attention)
    if attention:
        yield ATTENTION, list(winners), False
    for winner in winners:
        if installed(full).replaced[winner.task.id]:
            yield winner.task.id, [other for other in winners if other is not winner], attention


def _words(gain: Interval, pays: bool) -> str:
    bounds = f"{100 * (gain.low - 1):+.1f} … {100 * (gain.high - 1):+.1f} %"
    if not pays:
        return f"taken out: the model is {'' if gain.high < 1 else 'probably '}faster without it ({bounds})"
    return f"pays ({bounds})" if gain.low > 1 else f"within noise ({bounds})"


def _seconds(variant: Variant, wait: Wait | None) -> float:
    rounds = measure({"full": variant.once}, seconds=0, min_rounds=1, max_rounds=1, block_seconds=0.0, wait=wait)
    return rounds.seconds["full"][0]


def _quiet(_: str) -> None:
    return None
