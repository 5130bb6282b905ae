"""The centre of paired log ratios and its confidence interval, without assuming a distribution. Pure.

Hodges–Lehmann: the median of all pairwise means, with the interval that inverts Wilcoxon's signed-rank test (Hollander,
Wolfe and Chicken, Nonparametric Statistical Methods, section 3.2–3.3). One wild pair in ten moves neither much, where a
mean and its t interval would follow it. The distribution of the rank sum is computed exactly, so few pairs are fine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A ratio of times with its bounds; `low` is 0 and `high` infinite when there are too few pairs to say."""

    ratio: float
    low: float
    high: float
    pairs: int


def interval(ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """Centre and two-sided interval of positive paired `ratios`. Raises ValueError for none, or one not positive."""
    if not ratios or min(ratios) <= 0:
        raise ValueError("a positive ratio is needed from every pair, and at least one pair")
    logs = [math.log(ratio) for ratio in ratios]
    walsh = sorted((first + second) / 2 for i, first in enumerate(logs) for second in logs[i:])
    middle = len(walsh) // 2
    centre = walsh[middle] if len(walsh) % 2 else (walsh[middle - 1] + walsh[middle]) / 2
    drop = _outside(len(logs), (1 - confidence) / 2)
    if drop < 0:
        return Interval(math.exp(centre), 0.0, math.inf, len(logs))
    return Interval(math.exp(centre), math.exp(walsh[drop]), math.exp(walsh[-1 - drop]), len(logs))


@functools.cache
def _outside(pairs: int, tail: float) -> int:
    """Largest c with P(signed-rank sum ≤ c) ≤ tail; -1 when even c = 0 is more likely than that."""
    counts = [1]  # counts[w]: subsets of {1..n} with sum w
    for rank in range(1, pairs + 1):
        grown = counts + [0] * rank
        for total, count in enumerate(counts):
            grown[total + rank] += count
        counts = grown
    limit, seen = tail * 2**pairs, 0
    for total, count in enumerate(counts):
        seen += count
        if seen > limit:
            return total - 1
    return len(counts) - 1
