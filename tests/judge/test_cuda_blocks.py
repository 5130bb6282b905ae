"""Whole blocks of a GPU's timing against children of this process, whose time is made up and whose cheats are real.

The sets lie in memory of the CPU; everything that the parent does to them, and looks for in them, is the real thing.
"""

import math
import random

import pytest
import torch

from autokernel.judge import cuda_buffers, timing_cuda
from autokernel.judge.buffers import placed
from autokernel.judge.children import ChildFailure, Kernel
from autokernel.judge.contest import slower_at_first
from autokernel.judge.cuda_buffers import CudaSet
from autokernel.judge.timing import Plan, rolling
from autokernel.records import Reason, TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=(64, 8), stride=(8, 1))
OUT = TensorSpec(name="out", dtype="float32", shape=(64, 8), stride=(8, 1))
KERNEL = Kernel("source", "")
SETS, PASS, WAKING = 8, 1e-3, 8e-4  # seconds that a pass takes, and a round besides


class Memory:
    def __init__(self, size):
        self._bytes = torch.zeros(size, dtype=torch.uint8)

    def handle(self):
        return "00" * 64

    def bytes(self):
        return self._bytes


class Honest:
    """Writes 2·x into every set of a pass. `take` is what `passes` take; cheats override one thing each."""

    claimed_seconds, remark, closed = 0.0, "", False

    def __init__(self, sets):
        self.sets, self.passes = list(sets), 0
        self.noise = random.Random(7)

    def launch(self, one):
        torch.mul(one.inputs[0], 2, out=one.outputs[0])

    def all_of(self, sets):
        for one in sets:
            self.launch(one)
            one.armed = False

    def take(self, passes):
        return WAKING + self.noise.uniform(0, 1e-4) + passes * PASS

    def loop(self, calls, deadline, first=0):
        self.all_of(self.sets)
        return self.take(1)

    def replay(self, passes, deadline, meanwhile=None):
        self.all_of(self.sets)
        if meanwhile is not None:
            meanwhile()
            self.again()
        self.claimed_seconds = passes * PASS
        return self.take(passes)

    def again(self):
        """The passes after the parent has meddled."""
        self.all_of(self.sets)

    def part(self, count, deadline):
        self.all_of(self.sets[:count])

    def has_answered(self):
        return False

    def still(self):
        pass

    def close(self):
        self.closed = True


class Sandbox:
    transport = "ipc"

    def __init__(self, kind):
        self.kind, self.child = kind, None

    def spawn(self, kernel, sets, *, deadline):
        self.child = self.kind(sets)
        return self.child


@pytest.fixture(autouse=True)
def without_a_device(monkeypatch):
    monkeypatch.setattr(cuda_buffers, "Allocation", Memory)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def fresh(spec):
    return torch.randn(spec.shape)


def make_set():
    one = CudaSet(*placed([fresh(X)], [OUT], "cpu"))
    one.rewrite([fresh(X)])
    one.poison(0)
    return one


def right(sets):
    for one in sets:
        if not torch.equal(one.outputs[0], one.inputs[0] * 2):
            raise ChildFailure(Reason.wrong_values, "not twice the input")


def measure(kind, *, rounds=2, overhead=WAKING + 3e-4):
    sandbox = Sandbox(kind)
    sets = [make_set() for _ in range(SETS)]
    refresh = rolling([X], lambda one: one.rewrite([fresh(X)]))
    planned = Plan(sets=SETS, short=0, long=0, rounds=rounds)
    try:
        return timing_cuda.measure_block(
            sandbox, KERNEL, sets, planned, refresh=refresh, deadline=9.0, overhead=overhead, verify=right
        )
    finally:
        assert sandbox.child is None or sandbox.child.closed


def refused(kind, **more):
    with pytest.raises(ChildFailure) as caught:
        measure(kind, **more)
    return caught.value.reason


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_honest_kernel_s_time_is_found(rounds):
    block = measure(Honest, rounds=rounds)
    assert block.seconds == pytest.approx(PASS / SETS, rel=0.02)
    assert block.claimed == pytest.approx(PASS / SETS, rel=0.02)
    assert block.sets == SETS and len(block.rounds) == 2 * rounds


def test_a_trusted_side_is_charged_its_slope_and_tells_what_a_round_costs():
    block = measure(Honest, overhead=math.inf)
    assert block.seconds == pytest.approx(PASS / SETS, rel=0.02)
    assert WAKING < block.overhead < WAKING + 4e-4 and block.waking == pytest.approx(WAKING, rel=0.2)


def test_skipped_writes_on_repeats_leave_poison():
    class Skips(Honest):
        def again(self):
            for one in self.sets:
                if one.inputs_changed():
                    self.launch(one)

    assert refused(Skips) is Reason.not_written


def test_remembered_results_are_wrong_for_changed_values():
    class Remembers(Honest):
        def replay(self, passes, deadline, meanwhile=None):
            known = {id(one): one.inputs[0] * 2 for one in self.sets}
            self.launch = lambda one: one.outputs[0].copy_(known[id(one)])
            return super().replay(passes, deadline, meanwhile)

    assert refused(Remembers) is Reason.wrong_values


def test_a_done_that_came_too_early_writes_into_the_poison(monkeypatch):
    late = []
    sandbox_sleep = timing_cuda.time.sleep

    def sleep(seconds):
        for child in late:
            child.all_of(child.sets)
        sandbox_sleep(seconds)

    class Late(Honest):
        def replay(self, passes, deadline, meanwhile=None):
            late.clear()
            seconds = super().replay(passes, deadline, meanwhile)
            late.append(self)
            return seconds

    monkeypatch.setattr(timing_cuda.time, "sleep", sleep)
    with pytest.raises(ChildFailure, match="after the kernel was done") as caught:
        measure(Late)
    assert caught.value.reason is Reason.late_write


def test_work_for_other_calls_is_seen_in_a_part_of_a_pass():
    class AllAtOnce(Honest):
        def part(self, count, deadline):
            self.all_of(self.sets)

    assert refused(AllAtOnce) is Reason.out_of_bounds


def test_a_part_of_a_pass_that_is_left_out_is_seen():
    class Lazy(Honest):
        def part(self, count, deadline):
            self.all_of(self.sets[: count - 1])

    assert refused(Lazy) is Reason.not_written


def test_work_that_begins_before_the_launch_is_seen(monkeypatch):
    """A kernel that waits on the device for new values writes as soon as they are there, and before its launch."""
    waiting = []

    class Waits(Honest):
        def replay(self, passes, deadline, meanwhile=None):
            waiting[:] = []
            seconds = super().replay(passes, deadline, meanwhile)
            self.old = [one.inputs[0].clone() for one in self.sets]
            waiting.append(self)
            return seconds

    real = timing_cuda.time.sleep

    def sleep(seconds):
        for child in waiting:
            if any(not torch.equal(one.inputs[0], old) for one, old in zip(child.sets, child.old, strict=True)):
                child.all_of(child.sets)
        real(seconds)

    monkeypatch.setattr(timing_cuda.time, "sleep", sleep)
    with pytest.raises(ChildFailure, match="before it was launched"):
        measure(Waits)


def test_a_changed_input_is_seen():
    class Changes(Honest):
        def launch(self, one):
            one.inputs[0][0, 0] += 1
            super().launch(one)

    assert refused(Changes) is Reason.input_changed


def test_a_write_past_the_end_is_seen():
    class Beyond(Honest):
        def launch(self, one):
            super().launch(one)
            slot = one.layout.outputs[0]
            one._bytes[slot.base + slot.bytes] += 1

    assert refused(Beyond) is Reason.out_of_bounds


class Dawdles(Honest):
    """Long in short rounds (of about 30 passes; long ones have 100), so that the slope is small."""

    def take(self, passes):
        return super().take(90 if 20 < passes < 60 else passes)


def test_dawdling_in_short_rounds_gains_next_to_nothing():
    assert 0.99 * PASS / SETS < measure(Dawdles).seconds < 1.05 * PASS / SETS


class DawdlesAtFirst(Honest):
    """Takes five times as long until it was timed once, so that long rounds become short ones."""

    def take(self, passes):
        self.passes += 1
        return super().take(5 * passes if self.passes < 6 else passes)

    def has_answered(self):
        return self.passes >= 6 and self.rounds_planned_too_short()

    def rounds_planned_too_short(self):
        return not getattr(self, "answered", False) and not setattr(self, "answered", True)


def test_rounds_that_turn_out_too_short_are_planned_again():
    block = measure(DawdlesAtFirst)
    assert block.seconds == pytest.approx(PASS / SETS, rel=0.03)
    assert max(calls for calls, _ in block.rounds) >= 60 * SETS


def test_a_parent_that_never_looks_in_time_gives_no_time():
    class Quick(Honest):
        def has_answered(self):
            return True

    with pytest.raises(timing_cuda.TooSlowToLook):
        measure(Quick)


def test_values_that_are_compared_are_wholly_new():
    """A kernel may keep what no turning or moving of the values changes: their largest magnitude."""
    known = {}

    class Keeps(Honest):
        def launch(self, one):
            scale = known.setdefault(id(one), one.inputs[0].abs().max())
            torch.mul(one.inputs[0], 2 * one.inputs[0].abs().max() / scale, out=one.outputs[0])

    assert refused(Keeps) is Reason.wrong_values


class HalfThePasses(Honest):
    def take(self, passes):
        return WAKING + self.noise.uniform(0, 1e-4) + math.ceil(passes / 2) * PASS


def test_passes_that_are_not_run_are_suspect():
    probe = measure(Honest, overhead=math.inf)
    honest, cheats = [measure(Honest) for _ in range(4)], [measure(HalfThePasses) for _ in range(4)]
    assert slower_at_first(honest, probe) is None
    assert slower_at_first(cheats, probe) is not None


class GarbageUnlessLookedInto(Honest):
    """Quick garbage in `cheats` rounds that are not looked into, since it answers at once; honest in all others."""

    cheats, answered = 2, False

    def replay(self, passes, deadline, meanwhile=None):
        self.answered = False
        if self.due(meanwhile):
            self.cheats -= 1
            for one in self.sets:
                one.outputs[0].fill_(1.0)
                one.armed = False
            self.answered = True
            if meanwhile is not None:
                meanwhile()
            self.answered = False
            return WAKING + passes * PASS / 50
        return super().replay(passes, deadline, meanwhile)

    def due(self, meanwhile):
        return self.cheats > 0 and meanwhile is not None

    def has_answered(self):
        return self.answered


def test_a_round_that_was_not_looked_into_does_not_count():
    assert measure(GarbageUnlessLookedInto).seconds == pytest.approx(PASS / SETS, rel=0.03)


def test_a_kernel_that_dawdles_in_calibration_has_all_checks_all_the_same():
    class Dawdling(GarbageUnlessLookedInto):
        calls = 0

        def replay(self, passes, deadline, meanwhile=None):
            self.calls += 1
            if self.calls == 3:
                self.all_of(self.sets)
                return WAKING + 0.5
            return super().replay(passes, deadline, meanwhile)

        def due(self, meanwhile):
            return super().due(meanwhile) and self.calls > 4

    block = measure(Dawdling)
    assert block.seconds == pytest.approx(PASS / SETS, rel=0.03)
    assert block.single is not None and len(block.rounds) == 4


def test_poison_that_came_a_moment_too_late_is_no_fault_of_the_kernel():
    """The last pass ended between the parent's look for an answer and its poison: it was late, and says so itself."""

    class Done(Honest):
        late = 2

        def again(self):
            if self.late:
                self.late -= 1
                self.answered = True
            else:
                super().again()

        answered = False

        def replay(self, passes, deadline, meanwhile=None):
            self.answered = False
            return super().replay(passes, deadline, meanwhile)

        def has_answered(self):
            return self.answered

    monkey = timing_cuda._Meddler.act

    def act(self):
        monkey(self)
        if self.measuring.child.late:
            self.in_time = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing_cuda._Meddler, "act", act)
        assert measure(Done).seconds == pytest.approx(PASS / SETS, rel=0.03)
