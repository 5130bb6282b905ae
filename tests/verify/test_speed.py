"""Interleaved measurement: order, pairing, and what is said when rounds are few."""

import gc
import random
import time

import pytest

from autokernel.verify.speed import Rounds, measure


def test_every_round_runs_every_variant_once_in_changing_order():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = measure(calls, seconds=0, min_rounds=20, max_rounds=20, block_seconds=0.0, generator=random.Random(1))
    rounds = [tuple(order[at : at + 3]) for at in range(len(order) - 60, len(order), 3)]
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) > 3
    assert found.pairs == 20


def test_a_sleep_three_times_as_long_is_seen_as_such():
    calls = {"slow": lambda: time.sleep(0.006), "fast": lambda: time.sleep(0.002)}
    found = measure(calls, seconds=0, min_rounds=8, max_rounds=8, block_seconds=0.01)
    ratio = found.ratio("slow", "fast")
    assert 1.5 < ratio.low <= ratio.ratio <= ratio.high
    assert found.fastest(["slow", "fast"]) == "fast"
    assert found.ms("slow") > found.ms("fast") >= 2


def test_rounds_end_with_the_time_but_not_before_the_least_number():
    ran = measure({"a": lambda: time.sleep(0.001)}, seconds=0, min_rounds=3, max_rounds=50, block_seconds=0.0)
    assert ran.pairs == 3


def test_ratios_are_paired_by_round_so_a_drift_common_to_both_cancels():
    drift = [1.0, 2.0, 5.0, 9.0, 3.0, 1.5, 7.0]
    found = Rounds({"a": tuple(1.1 * step for step in drift), "b": tuple(drift)})
    ratio = found.ratio("a", "b")
    assert (ratio.low, ratio.high) == (pytest.approx(1.1), pytest.approx(1.1))


def test_later_rounds_can_be_of_some_of_the_variants():
    first = Rounds({"a": (2.0, 2.0), "b": (1.0, 1.0), "c": (9.0, 9.0)})
    both = first.followed_by(Rounds({"a": (4.0,), "b": (2.0,)}))
    assert both.seconds == {"a": (2.0, 2.0, 4.0), "b": (1.0, 1.0, 2.0), "c": (9.0, 9.0)}
    assert both.ratio("a", "b").pairs == 3
    assert both.ratio("c", "b").pairs == both.pairs == 2
    with pytest.raises(ValueError, match="every round"):
        both.followed_by(Rounds({"c": (9.0,)}))


def test_the_garbage_collector_is_on_again_afterwards():
    measure({"a": lambda: None}, seconds=0, min_rounds=1, max_rounds=1, block_seconds=0.0)
    assert gc.isenabled()


def test_the_clock_waits_for_the_device_before_and_after_each_block():
    events = []
    found = measure(
        {"a": lambda: events.append("call")},
        seconds=0,
        min_rounds=4,
        max_rounds=4,
        block_seconds=0.0,
        wait=lambda: events.append("wait"),
    )
    assert found.pairs == 4
    blocks = ["call", "call", "wait", "call", "call", "call", "wait"] * 4  # two of them before the clock runs
    assert events[-len(blocks) :] == blocks
