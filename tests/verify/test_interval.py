"""The interval of paired ratios: its coverage, its robustness, its honesty with few pairs."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autokernel.verify.interval import interval


def test_it_covers_the_truth_as_often_as_it_says():
    draw = random.Random(7)
    trials, inside = 400, 0
    for _ in range(trials):
        found = interval([1.05 * math.exp(draw.gauss(0, 0.03)) for _ in range(12)])
        inside += found.low <= 1.05 <= found.high
    assert 0.92 <= inside / trials <= 0.99


def test_one_wild_pair_in_ten_moves_neither_centre_nor_bounds_across_one():
    honest = [1.05 + 0.002 * step for step in range(-5, 6)]
    wild = interval([*honest, 30.0])
    assert abs(wild.ratio - 1.05) < 0.01
    assert 1.0 < wild.low < wild.ratio < wild.high < 1.2


def test_too_few_pairs_say_nothing():
    found = interval([1.5] * 5)
    assert (found.low, found.high) == (0.0, math.inf)
    assert interval([1.5] * 6).low == pytest.approx(1.5)


def test_the_rank_sum_bounds_are_those_of_the_published_table():
    # Wilcoxon's critical values, two-sided 5 %: n = 6 → 0, 10 → 8, 15 → 25, 20 → 52
    from autokernel.verify.interval import _outside

    assert [_outside(pairs, 0.025) for pairs in (5, 6, 10, 15, 20)] == [-1, 0, 8, 25, 52]


@given(st.lists(st.floats(0.2, 5.0), min_size=6, max_size=30))
def test_swapping_the_two_sides_turns_the_interval_over(ratios):
    one, other = interval(ratios), interval([1 / ratio for ratio in ratios])
    assert one.low <= one.ratio <= one.high
    assert other.ratio == pytest.approx(1 / one.ratio)
    assert other.low == pytest.approx(1 / one.high)


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -2.0]])
def test_a_ratio_that_cannot_be_is_refused(ratios):
    with pytest.raises(ValueError, match="positive"):
        interval(ratios)
