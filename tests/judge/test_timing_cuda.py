"""How blocks on a GPU are planned and what is suspect in them; the arithmetic alone, which needs no device."""

import dataclasses

import pytest

from autokernel.judge.contest import impossible, slower_at_first
from autokernel.judge.timing import Block
from autokernel.judge.timing_cuda import MAX_BYTES, MAX_SETS, is_cold, plan
from autokernel.records import Reason, Timing

L2 = 60 << 20


@pytest.mark.parametrize(("size", "cold"), [(1 << 20, False), (30 << 20, False), (31 << 20, True), (1 << 30, True)])
def test_a_model_finds_cold_what_fills_more_than_half_of_the_cache(size, cold):
    assert is_cold(size, L2) is cold


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 33 << 20, 1 << 29, 1 << 33])
def test_cold_sets_are_three_times_the_cache_where_memory_allows(size):
    sets = plan(size, L2, cold=True).sets
    assert 2 <= sets <= MAX_SETS
    assert sets * size >= 3 * L2 or sets == MAX_SETS or sets == MAX_BYTES // size
    assert sets * size <= MAX_BYTES or sets == 2


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 17 << 20, 30 << 20])
def test_warm_sets_fit_into_half_of_the_cache(size):
    assert 1 <= plan(size, L2, cold=False).sets * size <= max(L2 // 2, size)


def block(seconds, single, sets):
    return Block(seconds, 1e-3, seconds, ((1, seconds),), single=single, sets=sets)


PROBE = Block(1e-5, 1e-3, 1e-5, ((1, 1e-5),), waking=1e-3)


def test_repeats_that_skip_work_are_suspect_once_there_are_enough_blocks():
    skipping = [block(1e-5, 1e-3 + 64 * 2e-5, 64)] * 4
    assert slower_at_first(skipping[:3], PROBE) is None
    said = [dataclasses.replace(one, remark="not captured") for one in skipping]
    assert slower_at_first(said, PROBE) is not None  # the child's word does not switch it off
    words = slower_at_first(skipping, PROBE)
    assert words is not None and "20 µs" in words and "10 µs" in words


def test_what_waking_a_process_costs_is_no_reason_for_suspicion():
    assert slower_at_first([block(1e-5, 1e-3 + 64 * 1e-5 + 2e-4, 64)] * 4, PROBE) is None
    assert slower_at_first([block(1e-5, None, 64)] * 9, PROBE) is None
    assert slower_at_first([block(1e-5, 9e-3, 64)] * 9, None) is None


def test_many_sets_are_rotated_where_single_passes_are_timed():
    size = 33 << 20
    assert plan(size, L2, cold=True).sets > plan(size, L2, cold=True, rounds=1).sets


def test_where_everything_is_copied_there_are_few_sets():
    assert plan(33 << 20, L2, cold=True, most_bytes=64 << 20).sets == 2


def timing(candidate_us, floor_us):
    return Timing(incumbent_us=20, candidate_us=candidate_us, speedup=20 / candidate_us, ci_low=1, ci_high=9,
                  floor_us=floor_us, pairs=4)  # fmt: skip


@pytest.mark.parametrize(
    ("candidate", "bound", "wanted"),
    [(1.0, 2.0, Reason.time_impossible), (6.0, 2.0, Reason.time_disagrees), (7.0, 2.0, None), (9.0, 0.0, None)],
)
def test_below_the_measured_floor_is_suspect_and_below_the_bound_impossible(candidate, bound, wanted):
    assert impossible(timing(candidate, 10.0), bound, below_floor=1.5) is wanted
