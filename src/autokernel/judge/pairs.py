"""Pairs of fresh processes, and when they say enough: the sequential rule and its intervals (pure functions).

The unit is a pair: incumbent and candidate, each timed once in a process of its own, in random order. What counts is
the log of the ratio incumbent / candidate. A fixed number of pairs either misses small gains on noisy machines or
wastes time on clear ones, so the pairs are looked at one by one, from 4 up to a cap, against a bound that stays valid
however often one looks: at each look a one-sided Student t bound at α·`LOOK_SHARE`, a Pocock boundary (Pocock 1977)
whose constant was found by simulation, where nothing is to be gained, with normal noise; heavier tails and outliers
make it safer. It does not depend on the size of the noise, since t does not. A union bound over the looks would be
2.6 × as strict. The tests repeat the simulation.

One outlier (a neighbour's job, a page cache flush) must not decide. From 6 pairs on, mean and deviation are trimmed and
winsorised by about 10 %, at least one pair, at both ends (Tukey & McLaughlin 1963; Yuen 1974); with 4 or 5 pairs an
outlier widens the plain t bound more than it moves the mean, so the rule goes on.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

Decision = Literal["keep", "drop", "continue"]

FIRST_LOOK = 4
LOOK_SHARE = 0.07  # of α at each look: all looks together stay at α, for caps up to 40
SCREEN_GAIN = 0.005
SCREEN_LOOKS, SCREEN_REACH = 3, 2.0
NOISY, NOISY_REACH = 0.01, 10.0  # there a neighbour's visit may cost a pair a tenth, whatever the spread without it
DROP_TAIL = 0.02  # one-sided, at each look: how surely a candidate must fall short to be dropped early


def sequential(ratios: Sequence[float], min_gain: float, cap: int, confidence: float = 0.995) -> Decision:
    """What the pairs so far say of the candidate. `ratios`: incumbent time / candidate time, in the order measured.

    keep: the always-valid lower bound is above 1 and the estimate is at least 1 + `min_gain`. drop: it can no longer
    get there (the upper bound is below 1 + `min_gain`), or `cap` pairs are used up. `confidence` is that of the keep:
    a candidate that is no faster is kept with probability 1 − `confidence` at most, over all looks.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}")
    if len(ratios) < FIRST_LOOK:
        return "drop" if len(ratios) >= cap else "continue"
    estimate, error, freedom = _robust([math.log(r) for r in ratios])
    wanted = math.log1p(min_gain)
    if estimate - student_quantile((1 - confidence) * LOOK_SHARE, freedom) * error > 0 and estimate >= wanted:
        return "keep"
    falls_short = estimate + student_quantile(DROP_TAIL, freedom) * error < wanted
    return "drop" if falls_short or len(ratios) >= cap else "continue"


def screen(ratios: Sequence[float], spread: float, least: float = SCREEN_GAIN) -> Decision:
    """Whether a first look is worth more: keep (go on to all stages), drop, or continue (one more pair).

    One pair decides where the device repeats well. Where its own `spread` can hide a gain, a candidate that fell short
    by less than `SCREEN_REACH` standard errors (`NOISY_REACH` where the spread is at least `NOISY`) is looked at again,
    up to `SCREEN_LOOKS` pairs; the median counts.
    """
    middle = statistics.median(math.log(r) for r in ratios)
    wanted = math.log1p(least)
    if middle >= wanted:
        return "keep"
    reach = NOISY_REACH if spread >= NOISY else SCREEN_REACH
    within_noise = middle >= wanted - reach * spread / math.sqrt(len(ratios))
    return "continue" if within_noise and len(ratios) < SCREEN_LOOKS else "drop"


def interval(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Estimate and two-sided confidence interval of the ratio, for a number of pairs fixed beforehand (at least 2)."""
    if len(ratios) < 2:
        raise ValueError("an interval needs at least 2 pairs")
    estimate, error, _ = _robust([math.log(r) for r in ratios])
    wide = reach(len(ratios), (1 - confidence) / 2) * error
    return math.exp(estimate), math.exp(estimate - wide), math.exp(estimate + wide)


def reach(count: int, tail: float) -> float:
    """Standard errors from the estimate of `count` pairs to a bound that the truth passes with probability `tail`.

    Student's t of the trimmed mean's degrees of freedom is short for few pairs: at 6 of them a 95 % interval held the
    truth in 93.4 % of simulated cases. The factor was fitted to what is needed there (1.13 at 6 pairs, 1.03 at 10).
    """
    cut = trim(count)
    factor = 1 + 0.134 * (2 / (count / cut - 4)) ** 1.25 / cut if cut else 1.0
    return factor * student_quantile(tail, count - 2 * cut - 1)


def confirmed(ratios: Sequence[float], min_gain: float, confidence: float = 0.95) -> bool:
    """Whether a number of new pairs, fixed beforehand, shows a gain: interval above 1, estimate at least `min_gain`.

    One pair confirms nothing.
    """
    if len(ratios) < 2:
        return False
    estimate, low, _ = interval(ratios, confidence)
    return low > 1 and estimate >= 1 + min_gain


def spread(ratios: Sequence[float]) -> float:
    """Relative standard deviation of one pair (of A/A pairs: the noise of this device), as the estimate sees it.

    So that n such pairs give an estimate with a standard error of spread / √n. At least 2 pairs.
    """
    if len(ratios) < 2:
        raise ValueError("a spread needs at least 2 pairs")
    _, error, _ = _robust([math.log(r) for r in ratios])
    return error * math.sqrt(len(ratios))


def measure_pairs(
    measure_a: Callable[[], float],
    measure_b: Callable[[], float],
    rule: Callable[[Sequence[float]], Decision],
    *,
    order: random.Random | None = None,
    first_look: int = FIRST_LOOK,
    on_pair: Callable[[int, float, float], None] | None = None,
) -> list[tuple[float, float]]:
    """Pairs (a seconds, b seconds) until `rule(ratios a/b)` no longer says "continue". Each callable times one block.

    Which of the two goes first is drawn for every second pair, and the other way round in the next: what makes a
    second block slower then cancels. `order` makes that reproducible. `on_pair(number, a, b)` is
    called after each. Whatever a callable raises ends the measuring.
    """
    a_first = orders(order or random.SystemRandom())
    pairs: list[tuple[float, float]] = []
    while True:
        if next(a_first):
            a = measure_a()
            b = measure_b()
        else:
            b = measure_b()
            a = measure_a()
        pairs.append((a, b))
        if on_pair is not None:
            on_pair(len(pairs), a, b)
        if len(pairs) >= first_look and rule([one / other for one, other in pairs]) != "continue":
            return pairs


def orders(draw: random.Random) -> Iterator[bool]:
    """Whether the first of two goes first, pair after pair: drawn, then the other way round."""
    while True:
        first = draw.random() < 0.5
        yield first
        yield not first


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def trim(count: int) -> int:
    """How many of `count` pairs the estimate leaves out at either end."""
    return max(1, count // 10) if count >= 6 else 0


def _robust(values: Sequence[float]) -> tuple[float, float, int]:
    """Trimmed mean, its standard error, degrees of freedom."""
    count, cut = len(values), trim(len(values))
    ordered = sorted(values)
    kept = ordered[cut : count - cut]
    deviation = _deviation(_winsorised(ordered, cut))
    error = deviation / ((1 - 2 * cut / count) * math.sqrt(count))
    return math.fsum(kept) / len(kept), max(error, 1e-12), count - 2 * cut - 1


def _winsorised(ordered: Sequence[float], cut: int) -> list[float]:
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return [min(max(value, low), high) for value in ordered]


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))


@functools.lru_cache(maxsize=4096)
def student_quantile(tail: float, freedom: int) -> float:
    """t with P(T > t) = `tail` (below 0.5), for `freedom` ≥ 1 degrees of freedom; by bisection."""
    low, high = 0.0, 1.0
    while _upper_tail(high, freedom) > tail:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _upper_tail(t: float, freedom: int) -> float:
    """P(T > t), t ≥ 0: the finite sums of Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 - inside) / 2
