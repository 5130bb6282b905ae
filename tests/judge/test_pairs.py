"""The sequential rule and its intervals: simulated where nothing is to be gained, and where something is."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.judge import pairs
from autokernel.judge.pairs import interval, measure_pairs, sequential, spread, student_quantile


def decide(ratios, min_gain=0.005, cap=25, confidence=0.995):
    """Feed ratios one by one; the decision and how many were used."""
    for count in range(1, len(ratios) + 1):
        said = sequential(ratios[:count], min_gain, cap, confidence)
        if said != "continue":
            return said, count
    raise AssertionError("no decision at the cap")


def simulate(gain, noise, runs, cap=25, seed=0, outliers=0.0, min_gain=0.005, confidence=0.995):
    draw = np.random.default_rng(seed)
    logs = math.log1p(gain) + noise * draw.standard_normal((runs, cap))
    logs *= np.where(draw.random((runs, cap)) < outliers, 10, 1)
    decisions = [decide(np.exp(row).tolist(), min_gain, cap, confidence) for row in logs]
    return sum(said == "keep" for said, _ in decisions) / runs, sum(count for _, count in decisions) / runs


@pytest.mark.parametrize(
    "tail,freedom,value",
    [(0.025, 1, 12.7062), (0.025, 2, 4.30265), (0.025, 3, 3.18245), (0.005, 4, 4.60409), (0.0005, 20, 3.84952),
     (0.05, 7, 1.89458), (0.25, 1, 1.0)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(tail, freedom, value):
    assert student_quantile(tail, freedom) == pytest.approx(value, rel=1e-5)


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(1e-6, 0.49))
def test_quantiles_invert_the_distribution(freedom, tail):
    assert pairs._upper_tail(student_quantile(tail, freedom), freedom) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("cap", [25, 40])
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_a_kernel_that_is_no_faster_is_kept_less_often_than_promised(cap, outliers):
    """Looking after every pair, with no least gain asked for: the bound alone must hold the promise.

    At 5 % the promise can be tested with few runs; 4 standard errors of 1,500 runs are 0.023.
    """
    kept, _ = simulate(0.0, 0.02, 1500, cap, seed=cap, outliers=outliers, min_gain=0.0, confidence=0.95)
    assert kept < 0.05 + 0.023


def test_the_promise_holds_at_the_confidence_used():
    """All 20,000 simulated runs at once: the statistics of `sequential`, vectorised."""
    draw, cap, runs = np.random.default_rng(5), 40, 20_000
    logs = draw.standard_normal((runs, cap))
    rejected = np.zeros(runs, dtype=bool)
    for count in range(pairs.FIRST_LOOK, cap + 1):
        cut = pairs.trim(count)
        ordered = np.sort(logs[:, :count], axis=1)
        mean = ordered[:, cut : count - cut].mean(axis=1)
        clipped = np.clip(ordered, ordered[:, [cut]], ordered[:, [count - 1 - cut]])
        error = clipped.std(axis=1, ddof=1) / ((1 - 2 * cut / count) * math.sqrt(count))
        rejected |= mean / error > student_quantile(0.005 * pairs.LOOK_SHARE, count - 2 * cut - 1)
        estimate, own, freedom = pairs._robust(logs[0, :count].tolist())
        assert (estimate, own, freedom) == pytest.approx((mean[0], error[0], count - 2 * cut - 1))
    assert rejected.mean() < 0.005 + 4 * math.sqrt(0.005 / runs)


@pytest.mark.parametrize(
    "gain,noise,least_kept,most_pairs",
    [(0.02, 0.006, 0.97, 14), (0.05, 0.02, 0.93, 18), (0.30, 0.06, 0.97, 14), (0.10, 0.003, 0.99, 8)],
)
def test_a_real_gain_is_kept_with_few_pairs(gain, noise, least_kept, most_pairs):
    kept, used = simulate(gain, noise, 300, seed=1)
    assert kept >= least_kept and used <= most_pairs


def test_a_slower_kernel_is_dropped_quickly():
    kept, used = simulate(-0.05, 0.02, 300, seed=2)
    assert kept == 0 and used < 6


def test_gains_below_the_least_gain_are_not_kept():
    kept, _ = simulate(0.002, 0.0005, 200, seed=3, min_gain=0.01)
    assert kept == 0


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("outlier", [0.05, 20.0])
def test_one_outlier_does_not_decide(place, outlier):
    """A ratio of 20 doesn't keep a kernel that is no faster; one of 0.05 doesn't drop one that is 10 % faster."""
    draw = random.Random(place)
    gain = 0.0 if outlier > 1 else 0.10
    ratios = [math.exp(draw.gauss(math.log1p(gain), 0.004)) for _ in range(25)]
    ratios[place] = outlier
    said, _ = decide(ratios, min_gain=0.01)
    assert said == ("drop" if outlier > 1 else "keep")


def test_the_cap_ends_it():
    assert sequential([1.01, 0.99] * 12, 0.0, 24) == "drop"
    assert sequential([1.5], 0.0, 25) == "continue"
    assert sequential([1.5, 1.5], 0.0, 2) == "drop", "too few pairs to say anything"
    with pytest.raises(ValueError):
        sequential([1.0] * 5, 0.0, 25, confidence=1.0)


def test_equal_ratios_are_no_division_by_zero():
    assert sequential([1.2] * 4, 0.005, 25) == "keep"
    assert sequential([1.0] * 4, 0.005, 25) == "drop"
    assert interval([2.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("count", [4, 7, 25])
def test_intervals_cover_the_truth_as_often_as_they_say(count):
    draw = np.random.default_rng(count)
    covered = 0
    for row in 0.02 * draw.standard_normal((800, count)) + math.log(1.03):
        estimate, low, high = interval(np.exp(row).tolist(), 0.95)
        assert low <= estimate <= high
        covered += low <= 1.03 <= high
    assert 0.92 < covered / 800 < 0.98


def test_an_interval_needs_two_pairs():
    with pytest.raises(ValueError, match="2 pairs"):
        interval([1.0])


def test_the_spread_is_the_noise_of_one_pair():
    draw = random.Random(0)
    assert spread([math.exp(draw.gauss(0, 0.03)) for _ in range(400)]) == pytest.approx(0.03, rel=0.25)


def test_pairs_alternate_in_random_order_and_end_with_the_rule():
    calls = []

    def timer(name, value):
        def measure():
            calls.append(name)
            return value

        return measure

    seen = []
    measured = measure_pairs(
        timer("a", 2.0),
        timer("b", 1.0),
        lambda ratios: "keep" if len(ratios) == 40 else "continue",
        order=random.Random(3),
        on_pair=lambda *pair: seen.append(pair),
    )
    assert measured == [(2.0, 1.0)] * 40 and seen[-1] == (40, 2.0, 1.0)
    firsts = [calls[i] for i in range(0, 80, 2)]
    assert all({calls[i], calls[i + 1]} == {"a", "b"} for i in range(0, 80, 2))
    assert 8 < firsts.count("a") < 32


def test_the_rule_is_not_asked_before_four_pairs():
    asked = []
    measure_pairs(lambda: 1.0, lambda: 1.0, lambda ratios: asked.append(len(ratios)) or "drop")
    assert asked == [4]


def test_a_failure_ends_the_measuring():
    def fails():
        raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        measure_pairs(lambda: 1.0, fails, lambda ratios: "continue")
