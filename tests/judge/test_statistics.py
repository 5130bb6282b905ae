"""The judge's statistics where the truth is known: simulated devices, the judge's own rules, fixed seeds.

The bounds allow for the simulation's own chance (three standard errors of a share), no more.
"""

import math

import pytest

from autokernel.judge.pairs import confirmed, interval, screen, spread
from autokernel.judge.thresholds import (
    caps_from_spread,
    confirm_pairs,
    min_gain_from_spread,
    most_confirm,
    spread_of_interval,
    thresholds,
)
from autokernel.testing.simulated import Device, attempts

QUIET, BUSY = 0.004, 0.05  # one pair's spread: an H200, two CPU cores

DEVICES = {
    "quiet": Device(QUIET, 1),
    "usual": Device(0.01, 2),
    "busy": Device(BUSY, 3),
    "heavy tails": Device(0.02, 4, shape="student"),
    "outliers": Device(0.01, 5, outliers=0.05),
    "outliers of the incumbent alone": Device(0.01, 6, outliers=0.03, one_sided=True),
    "drift": Device(0.01, 7, drift=0.02),
    "memory": Device(0.02, 8, memory=0.8),
}


def share(found, total):
    """A share with three standard errors of chance on top."""
    one = found / total
    return one + 3 * math.sqrt(max(one * (1 - one), 1 / total) / total)


def kept(device, gain, count):
    return [one for one in attempts(device, gain, count) if one.kept]


@pytest.mark.parametrize("name", DEVICES)
def test_a_kernel_that_is_no_faster_is_next_to_never_kept(name):
    assert len(kept(DEVICES[name], 0.0, 900)) <= 1  # of three runs of 300 experiments


@pytest.mark.parametrize("name", ["quiet", "usual", "busy"])
def test_a_slower_kernel_is_never_kept(name):
    assert kept(DEVICES[name], -0.02, 300) == []


@pytest.mark.parametrize(
    ("device", "gain", "least"),
    [
        (Device(QUIET, 11), 0.015, 0.9),
        (Device(0.006, 12), 0.015, 0.9),
        (Device(0.01, 13), 0.03, 0.9),
        (Device(BUSY, 14), 0.10, 0.9),
        (Device(0.06, 15), 0.10, 0.8),
    ],
)
def test_a_true_gain_is_kept(device, gain, least):
    found = len(kept(device, gain, 200)) / 200
    assert found >= least - 3 * math.sqrt(least * (1 - least) / 200)


@pytest.mark.parametrize("name", ["quiet", "usual", "busy", "heavy tails", "outliers"])
@pytest.mark.parametrize("count", [6, 10, 20])
def test_the_interval_holds_the_truth_as_often_as_it_says(name, count):
    device, gain, tries = DEVICES[name], 0.03, 600
    held = 0
    for _ in range(tries):
        _, low, high = interval(device.ratios(gain, count))
        held += low <= 1 + gain <= high
    assert share(held, tries) >= 0.95


def test_a_drift_within_pairs_does_not_pass_for_a_gain():
    device = Device(0.001, 9, drift=0.03)  # every second block takes 3 % longer
    held = 0
    for _ in range(300):
        _, low, high = interval(device.ratios(0.0, 6))
        held += low <= 1 <= high
    assert share(held, 300) >= 0.95


def test_what_is_reported_is_not_what_chose_it_but_new_pairs_that_know_nothing_of_the_choice():
    came = [one for one in attempts(Device(0.02, 21), 0.015, 4000) if one.ended == "confirm"]
    assert len(came) > 400
    chosen_on = sum(one.chosen_on for one in came) / len(came)
    reported = sum(one.estimate for one in came) / len(came)
    assert chosen_on - 1.015 > 0.0025  # a winner's curse of a fifth of the gain
    assert abs(reported - 1.015) < 0.001


def test_a_clear_gain_takes_few_pairs_and_a_clear_loss_one():
    fast = attempts(Device(QUIET, 31), 0.2, 50)
    assert all(one.kept and one.blocks[1] == 4 for one in fast)
    slow = attempts(Device(QUIET, 32), -0.2, 50)
    assert all(one.blocks == (1, 0, 0) for one in slow)


def test_no_test_takes_more_pairs_than_its_cap():
    device = Device(BUSY, 33)
    assert max(one.blocks[1] for one in attempts(device, 0.02, 300)) <= 40


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_a_screen_looks_again_only_where_noise_may_hide_a_gain():
    assert screen([1.006], 0.0) == "keep"
    assert screen([1.004], 0.0) == "drop"
    assert screen([0.99], 0.004) == "drop"
    assert screen([1.0], 0.004) == "continue"
    assert screen([1.0, 1.001, 0.999], 0.004) == "drop"
    assert screen([0.98, 1.03, 1.02], 0.05) == "keep"


def test_a_spread_is_that_of_one_pair():
    found = [spread(Device(0.02, seed).ratios(0.0, 12)) for seed in range(200)]
    assert sum(found) / len(found) == pytest.approx(0.02, rel=0.1)


def test_a_spread_can_be_read_from_an_interval():
    ratios = Device(0.02, 5).ratios(0.0, 8)
    _, low, high = interval(ratios)
    assert spread_of_interval(low, high, 8) == pytest.approx(spread(ratios))
    assert spread_of_interval(1.0, 1.0, 1) is None


def test_limits_follow_the_spread():
    assert [caps_from_spread(value) for value in (0.0, 0.004, 0.0072, 0.05)] == [12, 12, 26, 40]
    assert min_gain_from_spread(0.001, 10) == 0.005
    assert min_gain_from_spread(0.05, 20) == pytest.approx(3 * 0.05 / math.sqrt(20))
    assert (confirm_pairs(4, 12), confirm_pairs(8, 40), confirm_pairs(40, 40)) == (6, 12, 20)
    assert most_confirm(12) == 10


def test_what_the_user_asked_for_is_the_least_gain_whatever_the_spread():
    assert thresholds(0.05, min_gain=0.01).min_gain == 0.01
    assert thresholds(0.05, most_pairs=8).cap == 8
    assert thresholds(None).spread == 0.0


@pytest.mark.parametrize("bad", [-0.1, math.inf, math.nan])
def test_a_spread_that_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="a spread"):
        caps_from_spread(bad)


def test_one_pair_confirms_nothing():
    assert not confirmed([2.0], 0.0)
    assert confirmed([1.02] * 5 + [1.021], 0.01)
    assert not confirmed([1.02] * 5 + [1.021], 0.03)


def test_on_a_noisy_device_a_disturbed_pair_is_followed_by_another():
    assert screen([0.86], 0.017) == "continue"
    assert screen([0.86, 1.1], 0.017) == "continue"
    assert screen([0.86, 1.1, 1.09], 0.017) == "keep"
    assert screen([0.82], 0.017) == "drop"
    assert screen([0.97], 0.009) == "drop"
