"""Timed blocks: every call on values never seen, and each way to skip work refused. No test depends on how fast."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autokernel.judge.buffers import BufferSet
from autokernel.judge.sandbox import ChildFailure, Kernel, Sandbox
from autokernel.judge.timing import (
    MAX_BYTES,
    MAX_SETS,
    Plan,
    last_level_cache,
    measure_block,
    plan,
    probe,
    rolling,
    round_overhead,
    seconds_per_call,
)
from autokernel.records import Reason, TensorSpec

DEADLINE = 60.0
SHAPE = (64, 256)
X = TensorSpec(name="x", dtype="float32", shape=SHAPE, stride=(256, 1))
INDEX = TensorSpec(name="index", dtype="int64", shape=(64,), stride=(1,), domain="index", high=64)
OUT = TensorSpec(name="out", dtype="float32", shape=SHAPE, stride=(256, 1))
PLAN = Plan(sets=8, short=2, long=8, rounds=5)
DOUBLE = "import torch\ndef launch(x, index, out): torch.mul(x, 2, out=out)\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(threads=1) as made:
        yield made


@pytest.fixture
def sets():
    return [BufferSet.create([torch.randn(SHAPE), torch.arange(64)], [OUT]) for _ in range(PLAN.sets)]


def right(sets):
    for one in sets:
        if not torch.equal(one.outputs[0], one.inputs[0] * 2):
            raise ChildFailure(Reason.wrong_values, "outputs of a timed round are wrong")


def block(sandbox, source, sets, **more):
    kernel = Kernel("source", source)
    return measure_block(
        sandbox, kernel, sets, PLAN, refresh=rolling([X, INDEX]), deadline=DEADLINE, verify=right, **more
    )


def refused(sandbox, source, sets):
    with pytest.raises(ChildFailure) as caught:
        block(sandbox, source, sets)
    return caught.value.reason


def test_an_honest_kernel_is_timed_by_the_parents_clock(sandbox, sets):
    found = block(sandbox, DOUBLE, sets)
    assert found.seconds > 0
    assert sorted({calls for calls, _ in found.rounds}) == [2, 8] and len(found.rounds) == 10
    assert sandbox._child is None, "its child is gone"


def test_a_kernel_that_is_wrong_in_some_rounds_only_does_not_get_through_many_blocks(sandbox, sets):
    """Fast rounds count more than slow ones, so every fourth would do; four of five rounds are looked at."""
    source = """
import random, time, torch
last, lazy = 0.0, False
def launch(x, index, out):
    global last, lazy
    if time.monotonic() - last > 0.0005:  # the parent has been at work in between: a new round
        lazy = random.random() < 0.3
    out.fill_(1) if lazy else torch.mul(x, 2, out=out)
    last = time.monotonic()
"""
    caught = 0
    for _ in range(8):
        try:
            block(sandbox, source, sets)
        except ChildFailure as failure:
            assert failure.reason is Reason.wrong_values
            caught += 1
    assert caught >= 3  # three in four are; a keep takes ten blocks


def test_twice_the_work_takes_longer(sandbox, sets):
    """By a factor of 200, so that no load on the machine turns it round."""
    much = DOUBLE.replace("torch.mul", "[torch.mul(x, 3, out=out) for _ in range(200)]; torch.mul")
    assert block(sandbox, much, sets).seconds > 3 * block(sandbox, DOUBLE, sets).seconds


CHEATS = {
    "output cached by pointer": ("""
import torch
seen = set()
def launch(x, index, out):
    if out.data_ptr() not in seen:
        seen.add(out.data_ptr())
        torch.mul(x, 2, out=out)
""", {Reason.not_written}),
    "output cached by a glance at the content": ("""
import torch
seen = {}
def launch(x, index, out):
    key = tuple(index[:8].tolist())
    if key not in seen:
        seen[key] = x * 2
    out.copy_(seen[key])
""", {Reason.wrong_values}),
    "honest for the first calls, then not": ("""
import torch
calls = 0
def launch(x, index, out):
    global calls
    calls += 1
    torch.mul(x, 2 if calls < 12 else 2.5, out=out)
""", {Reason.wrong_values}),
    "one launch for two calls": ("""
import torch
calls = 0
def launch(x, index, out):
    global calls
    calls += 1
    if calls % 2:
        torch.mul(x, 2, out=out)
""", {Reason.not_written, Reason.wrong_values}),
    "half of the output": ("""
import torch
def launch(x, index, out):
    torch.mul(x[:32], 2, out=out[:32])
""", {Reason.not_written}),
    "half of every row": ("""
import torch
def launch(x, index, out):
    torch.mul(x[:, :128], 2, out=out[:, :128])
""", {Reason.not_written}),
    "writes past the end in timed calls": ("""
import ctypes, torch
def launch(x, index, out):
    torch.mul(x, 2, out=out)
    ctypes.memset(out.data_ptr() + out.numel() * 4, 1, 1)
""", {Reason.out_of_bounds}),
    "changes its input in timed calls": ("""
import torch
def launch(x, index, out):
    torch.mul(x, 2, out=out)
    x[0, 0] = 1
""", {Reason.input_changed}),
    "work left to a thread": ("""
import threading, time, torch
def launch(x, index, out):
    def later():
        time.sleep(0.003)
        torch.mul(x, 2, out=out)
    threading.Thread(target=later).start()
""", {Reason.not_written, Reason.late_write, Reason.wrong_values}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(sandbox, sets, name):
    source, reasons = CHEATS[name]
    assert refused(sandbox, source, sets) in reasons


def test_trusted_opponents_are_checked_the_same_way(sandbox, sets):
    source = "from torch import nn\nclass Model(nn.Module):\n    def forward(self, x, index): return x * 2\n"
    kernel = Kernel("eager", source)
    found = measure_block(
        sandbox,
        kernel,
        sets,
        PLAN,
        refresh=rolling([X, INDEX]),
        deadline=DEADLINE,
        verify=right,
        order=random.Random(1),
    )
    assert found.seconds > 0


FORGED = {
    "dawdling in short rounds": """
import sys, time, torch
def launch(x, index, out):
    torch.mul(x, 2, out=out)
    time.sleep(0.001)
    if sys._getframe(2).f_locals["count"] == 2:
        time.sleep(0.0029)
""",
    "a round's work in its first call": """
import sys, time
def launch(x, index, out):
    frame = sys._getframe(2)
    if frame.f_locals["call"] is frame.f_locals["order"][0]:
        time.sleep(0.008)
    out.copy_(x * 2)
""",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_kernel_that_knows_how_long_its_round_is_gains_nothing(sandbox, sets, name):
    """Both take 1 ms a call and make the slope nearly flat."""
    found = block(sandbox, FORGED[name], sets, overhead=0.001)
    assert found.seconds > 0.0008
    assert found.overhead > 0.004, "by its slope alone it would be several times as fast"


def test_a_round_of_our_own_kernel_tells_what_a_round_costs_besides(sandbox, sets):
    found = measure_block(sandbox, probe(2), sets, PLAN, refresh=rolling([X, INDEX]), deadline=DEADLINE)
    assert 0 <= found.overhead < max(seconds for _, seconds in found.rounds)


def rounds(short, long):
    return [(2, short)] * 5 + [(8, long)] * 5


def test_a_candidate_is_not_credited_with_its_intercept():
    honest, forged = rounds(0.3, 0.9), rounds(0.85, 0.9)
    assert seconds_per_call(honest, PLAN, 0.1) == pytest.approx(0.1)
    assert round_overhead(honest, PLAN) == pytest.approx(0.1)
    assert seconds_per_call(forged, PLAN, 0.1) == pytest.approx(0.1)
    assert seconds_per_call(forged, PLAN, math.inf) == pytest.approx(0.05 / 6)


@given(st.floats(1e-7, 10), st.floats(1e-7, 10), st.floats(0, 10))
def test_a_time_a_call_is_positive_and_no_less_than_the_long_rounds_say(short, long, overhead):
    found = seconds_per_call(rounds(short, long), PLAN, overhead)
    assert found > 0 and found >= (long - overhead) / PLAN.long


def test_too_few_sets_for_a_plan_are_an_error(sandbox, sets):
    with pytest.raises(ValueError, match="sets"):
        block(sandbox, DOUBLE, sets[:4])


def test_rolling_gives_new_numbers_of_the_same_binades_and_leaves_indices(sets):
    before = sets[0].inputs[0].clone()
    rolling([X, INDEX])(sets[0], random.Random(5), False)
    now = sets[0].inputs[0]
    assert torch.equal(now.frexp().exponent.flatten().sort().values, before.frexp().exponent.flatten().sort().values)
    assert len(set(now.abs().flatten().tolist()) & set(before.abs().flatten().tolist())) < 0.05 * before.numel()
    assert torch.equal(sets[0].inputs[1], torch.arange(64))
    assert sets[0].inputs_changed() == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_inputs_of_either_sign_are_negated_half_of_the_time_and_no_others(dtype):
    source = torch.rand(40).to(getattr(torch, dtype)) + 1
    specs = [TensorSpec(name="x", dtype=dtype, shape=(40,), stride=(1,), domain=d) for d in ("real", "positive")]
    one = BufferSet.create([source, source], [])
    draw, signs = random.Random(3), set()
    for _ in range(20):
        rolling(specs)(one, draw, False)
        signs.add(bool((one.inputs[0] < 0).all()))
        assert (one.inputs[0].abs() >= 1).all() and (one.inputs[0].abs() < 4).all()  # 2 after rounding
        assert (one.inputs[1] > 0).all() and one.inputs_changed() == []
    assert signs == {True, False}
    one.inputs[0][3] *= -1
    assert one.inputs_changed() == [0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_numbers_that_are_none_stay_what_they_are_and_a_unit_stays_below_one(dtype):
    kind = getattr(torch, dtype)
    odd = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(kind).smallest_normal / 4, 1.0], dtype=kind)
    source = torch.cat([odd, torch.rand(26).to(kind).clamp(0.01, 1.0)])
    one = BufferSet.create([source], [])
    unit = TensorSpec(name="x", dtype=dtype, shape=(32,), stride=(1,), domain="unit")
    for seed in range(10):
        rolling([unit])(one, random.Random(seed), False)
        now = one.inputs[0]
        for count in (lambda v: (v == 0).sum(), lambda v: v.isnan().sum(), lambda v: v.isinf().sum()):
            assert count(now) == count(source)
        finite = now[now.isfinite()]
        assert ((finite >= 0) & (finite <= 1)).all()
        assert one.inputs_changed() == []


def test_no_result_of_a_round_can_be_copied_from_an_earlier_one():
    """What was accepted once as five times faster: a table of results, read where the values had moved to."""
    source = torch.randn(4096)
    one = BufferSet.create([source], [])
    spec = TensorSpec(name="x", dtype="float32", shape=(4096,), stride=(1,))
    known = set(source.abs().tolist())
    for seed in range(5):
        rolling([spec])(one, random.Random(seed), False)
        values = set(one.inputs[0].abs().tolist())
        assert len(values & known) < 41  # by chance alone
        known |= values


@given(st.integers(1, 1 << 34), st.floats(1e-7, 10), st.integers(1 << 20, 1 << 29))
def test_every_plan_can_be_carried_out(size, seconds, cache):
    made = plan(size, seconds, cache_bytes=cache)
    assert 2 <= made.sets <= MAX_SETS and 1 <= made.short < made.long <= made.sets
    assert 1 <= made.rounds <= 16
    assert made.sets == 2 or made.sets * size <= MAX_BYTES


def test_plans_leave_the_cache_where_that_is_sane():
    assert plan(8 << 20, 1e-3, cache_bytes=32 << 20).sets == 6
    assert plan(4096, 1e-3, cache_bytes=32 << 20).sets == 4, "a small kernel's buffers are cached in a model, too"
    assert plan(4096, 1e-5, cache_bytes=32 << 20).sets == MAX_SETS


def test_the_last_level_cache_is_a_size():
    assert 1 << 18 <= last_level_cache() <= 1 << 31
