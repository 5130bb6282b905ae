"""What a device's own noise makes of the limits: pairs at most, pairs to confirm, the least gain (pure functions).

The noise is the *spread*: the relative standard deviation of one pair of a kernel against itself, as the robust
estimate sees it (`pairs.spread`): the estimate of n pairs then has a standard error of spread / √n.

* **Cap.** A sequential test finds a gain g in about (7 · spread / g)² pairs (7: the bound of 99.5 % over all looks, and
  what a power of 90 % needs besides). It may take what a gain of 1 % needs, but at least 12 pairs and at most 40; the
  boundary was not calibrated beyond.
* **Confirmation.** Half as many new pairs again as the test took, at least 6, at most half of the cap or 10: a test
  that chance ended early would else be followed by a confirmation too short for the same gain.
* **Least gain.** The larger of 0.5 % and three times the spread *of the estimate* that has to show it, which is the
  confirmation's, so of its largest number of pairs. Three times the spread of a single pair would ask for 18 % on two
  CPU cores, where a confirmed gain of 5 % is certain: averaging is what the pairs are for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autokernel.judge.pairs import FIRST_LOOK, reach

MIN_GAIN = 0.005
LEAST_CAP, USUAL_CAP, MOST_CAP = 12, 25, 40
LEAST_CONFIRM, USUAL_CONFIRM, MORE_TO_CONFIRM = 6, 10, 1.5
_SOUGHT_GAIN, _REACH = 0.01, 7.0
_TIMES_SPREAD = 3.0


@dataclass(frozen=True)
class Thresholds:
    """What a candidate meets on one device. Gains and spread are fractions: 0.005 is 0.5 %."""

    spread: float  # 0: not known, one block decides in the screen
    cap: int  # pairs of a sequential test
    min_gain: float


def thresholds(spread: float | None, *, min_gain: float | None = None, most_pairs: int = MOST_CAP) -> Thresholds:
    """All limits from a spread (None: not known). `min_gain`: the user's own; `most_pairs`: what there is time for."""
    cap = USUAL_CAP if spread is None else caps_from_spread(spread)
    cap = max(FIRST_LOOK, min(cap, most_pairs))
    least = min_gain_from_spread(spread or 0.0, most_confirm(cap)) if min_gain is None else min_gain
    return Thresholds(spread or 0.0, cap, least)


def caps_from_spread(spread: float) -> int:
    """The most pairs a sequential test may take: 12 on a quiet device, 25 from 0.7 %, 40 from 0.9 % on."""
    _check(spread)
    return max(LEAST_CAP, min(MOST_CAP, math.ceil((_REACH * spread / _SOUGHT_GAIN) ** 2)))


def min_gain_from_spread(spread: float, pairs: int) -> float:
    """The least gain worth keeping where an estimate of `pairs` pairs has to show it."""
    _check(spread)
    return max(MIN_GAIN, _TIMES_SPREAD * spread / math.sqrt(pairs))


def most_confirm(cap: int) -> int:
    """The most pairs that a confirmation takes."""
    return max(USUAL_CONFIRM, cap // 2)


def confirm_pairs(used: int, cap: int) -> int:
    """How many new pairs confirm a test that took `used` of at most `cap`; fixed before the first of them is timed."""
    return min(max(LEAST_CONFIRM, math.ceil(MORE_TO_CONFIRM * used)), most_confirm(cap))


def spread_of_interval(low: float, high: float, pairs: int, confidence: float = 0.95) -> float | None:
    """The spread of one pair, from an interval that `pairs.interval` made of `pairs` pairs. None where it has none."""
    if pairs < 2 or not 0 < low <= high < math.inf:
        return None
    error = math.log(high / low) / 2 / reach(pairs, (1 - confidence) / 2)
    return error * math.sqrt(pairs)


def _check(spread: float) -> None:
    if not 0 <= spread < math.inf:
        raise ValueError(f"a spread is a number ≥ 0, not {spread}")
