"""One timed block on a GPU: passes over R sets as CUDA graphs in a fresh child, by the parent's clock.

A pass is one launch over each set. Rounds repeat it for about 20 and 130 ms; the slope between them is the time of a
pass. Fresh children of one kernel agree to 0.2–0.8 % like this, where rounds of a few milliseconds agree to 5 %.

Rounds repeat their inputs, so what must keep a kernel from saving work on repeats is done while it runs: in a long
round the parent gives new values to some sets and poisons the outputs of others. Whoever skips the writing of what it
wrote before leaves poison; whoever remembers results leaves the old ones. A pass over some of the sets must leave the
others alone. And single passes on values that are new in every set are timed on their own: what takes longer there than
in a repeat is SUSPECT (`contest.slower_at_first`); that is also how passes that were not run show, where a pass lasts
long enough.

A process that is stopped has not stopped its GPU work. So the outputs are poisoned as soon as a round is over and must
stay so for about the time of two passes, in which the inputs get new values: a "done" that came too early, or a kernel
that waits for the next inputs on the device, writes into the poison.

R sets are more than the L2 cache holds (R·bytes ≥ 3 × L2; as many as memory allows where something may be kept) for a
task that finds its tensors cold, and half of it at most for one that finds them in the cache.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from autokernel.judge.children import AnySet, ChildFailure, Kernel
from autokernel.judge.sandbox import Child, Sandbox
from autokernel.judge.timing import Block, Plan, Refresh, Verify
from autokernel.records import Reason

if TYPE_CHECKING:
    from autokernel.judge.cuda_buffers import CudaSet

MAX_SETS = 64
MAX_BYTES = 2 << 30  # of all sets, on a device that has plenty (contest.py)
HOST_BYTES = 64 << 20  # of all sets together, where every command copies them
SHORT_SECONDS, LONG_SECONDS = 0.02, 0.13
SINGLES = 6
QUICK = 0.4  # how much shorter a block of one round each is: it tells whether a look is worth it, no more
_MEDDLED = 8  # sets that are touched while a round runs
_CHANGED = 2  # of these, sets that get new values
_ATTEMPTS = 3
_LEAST_LENGTH = 0.6  # of what a long round should last: below, calibration was wrong, by accident or by design
_SLOW_PASS = 0.2  # seconds, from which one round of each kind has to do


def plan(set_bytes: int, cache_bytes: int, *, cold: bool, rounds: int = 2, most_bytes: int = MAX_BYTES) -> Plan:
    """R sets for tensors that are found cold, or in the cache; rounds of each length.

    Cold sets are more than three times the cache. In a block of more than one round of each kind they are as many as
    memory allows, so that a pass lasts half a millisecond, and single passes can be timed.
    """
    size = max(set_bytes, 1)
    most = max(1, min(MAX_SETS, most_bytes // size))
    if not cold:
        return Plan(sets=max(1, min(cache_bytes // 2 // size, most)), short=0, long=0, rounds=rounds)
    wanted = most if rounds > 1 else math.ceil(3 * cache_bytes / size)
    return Plan(sets=max(2, min(wanted, most)), short=0, long=0, rounds=rounds)


def is_cold(set_bytes: int, cache_bytes: int) -> bool:
    """What a model finds cold: tensors that together take more than half of the cache."""
    return 2 * set_bytes > cache_bytes


class TooSlowToLook(Exception):
    """This process, not the kernel's, was too slow to change values while a round ran."""


def measure_block(
    sandbox: Sandbox,
    kernel: Kernel,
    sets: Sequence[AnySet],
    planned: Plan,
    *,
    refresh: Refresh,
    deadline: float,
    overhead: float = 0.0,
    verify: Verify | None = None,
    rolls: bool = True,
) -> Block:
    """Time `kernel` over `sets` in a fresh child, which is ended afterwards; as `timing.measure_block`.


    `overhead`: what a round takes at most besides its passes, as measured on a kernel of ours: what a kernel that
    dawdles in short rounds could hide. Infinite: the kernel is trusted, and its own slope counts.
    `rolls`: whether `refresh` can give new values without drawing, which is what may be done under a running kernel.
    Raises ChildFailure, SandboxDied, TooSlowToLook.
    """
    draw = random.SystemRandom()
    used = list(sets[: planned.sets])
    draw.shuffle(used)
    return _Measuring(sandbox, kernel, used, planned, refresh, deadline, overhead, verify, draw, rolls).run()


class _Measuring:
    def __init__(
        self,
        sandbox: Sandbox,
        kernel: Kernel,
        sets: list[AnySet],
        planned: Plan,
        refresh: Refresh,
        deadline: float,
        overhead: float,
        verify: Verify | None,
        draw: random.SystemRandom,
        rolls: bool,
    ) -> None:
        self.rolls = rolls
        self.kernel, self.sets, self.planned, self.refresh = kernel, sets, planned, refresh
        self.deadline, self.overhead, self.verify, self.draw = deadline, overhead, verify, draw
        self.trusted = math.isinf(overhead)
        self.pass_seconds = 0.0
        self.shared = sandbox.transport == "ipc"  # else the parent sees nothing while a round runs (host_buffers.py)
        self._between()  # before there is a child
        self.child: Child = sandbox.spawn(kernel, sets, deadline=deadline)

    def run(self) -> Block:
        try:
            self.child.loop(len(self.sets), self.deadline)
            self._calibrate()
            singles, rounds = self._measured()
            self._between()
            self.child.still()
        finally:
            self.child.close()
        return self._block(singles, rounds)

    def _several(self) -> bool:
        """Whether this block is for more than a first look, of a kernel that isn't slow."""
        return self.planned.rounds > 1 and self.pass_seconds < _SLOW_PASS

    def _block(self, singles: Sequence[float], rounds: Sequence[tuple[int, float, float]]) -> Block:
        count = len(self.sets)
        short, long = min(n for n, _, _ in rounds), max(n for n, _, _ in rounds)

        def slope(which: int) -> float:
            middle = {n: statistics.median(r[which] for r in rounds if r[0] == n) for n in (short, long)}
            return (middle[long] - middle[short]) / (long - short)

        whole = statistics.median(seconds for n, seconds, _ in rounds if n == long)
        one = slope(1)
        if not self.trusted:
            one = max(one, (whole - self.overhead) / long)
        one = one if one > 0 else whole / long
        single = statistics.median(singles)
        spread = statistics.median(abs(each - single) for each in singles)
        return Block(
            seconds=one / count,
            overhead=max(0.0, single + 2 * spread - one),
            claimed=max(slope(2), 0.0) / count,
            rounds=tuple((n * count, seconds) for n, seconds, _ in rounds),
            single=single if len(singles) > 1 else None,
            waking=max(0.0, single - one),
            sets=count,
            remark=self.child.remark,
        )

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _measured(self) -> tuple[list[float], list[tuple[int, float, float]]]:
        """Seconds of single passes, and (passes, seconds, claimed seconds) of the timed rounds.

        A pass that was taken for longer than it is makes rounds short, and a slow kernel's block has fewer checks: all
        of it is done again with what the rounds say of a pass.
        """
        for _ in range(_ATTEMPTS + 1):
            self._part()
            singles = [self._round(1)[0] for _ in range(SINGLES if self._several() else 1)]
            rounds = self._rounds()
            long = max(passes for passes, _, _ in rounds)
            whole = statistics.median(seconds for passes, seconds, _ in rounds if passes == long)
            if whole >= _LEAST_LENGTH * long * self.pass_seconds:
                return singles, rounds
            self.pass_seconds = whole / long
        raise TooSlowToLook

    def _rounds(self) -> list[tuple[int, float, float]]:
        """Rounds as planned, in random order. Values are compared after every long one, and one that was not looked
        into while it ran does not count: it is run again."""
        kinds = self.planned.rounds if self._several() else 1
        target = LONG_SECONDS * (1.0 if self.planned.rounds > 1 else QUICK)
        short = max(1, round(target * SHORT_SECONDS / LONG_SECONDS / self.pass_seconds))
        long = max(short + 1, round(target / self.pass_seconds))
        due = [short, long] * kinds
        self.draw.shuffle(due)
        found: list[tuple[int, float, float]] = []
        unseen = 0
        while due:
            passes = due.pop()
            seconds, claimed, looked = self._round(passes, meddles=passes == long, compares=passes == long)
            if looked or passes == short or self.trusted:
                found.append((passes, seconds, claimed))
                continue
            unseen += 1
            if unseen > _ATTEMPTS:
                raise TooSlowToLook
            due.insert(self.draw.randrange(len(due) + 1), passes)
        return found

    def _round(self, passes: int, *, meddles: bool = False, compares: bool = False) -> tuple[float, float, bool]:
        """Seconds, what the child claims, and whether it was looked at while it ran, of passes that begin with new
        values in every set. Both sides are meddled with, so that it costs both the same."""
        renewed = self.draw.sample(self.sets, min(_CHANGED if self._several() else 1, len(self.sets)))
        self._between(renewed if compares else ())
        meddler = _Meddler(self, passes, renewed) if meddles and self.shared else None
        seconds = self.child.replay(passes, self.deadline, meddler.act if meddler else None)
        claimed = self.child.claimed_seconds
        looked = meddler.in_time if meddler is not None else not self.shared
        if meddles and not self.trusted:
            self._look(renewed, looked, compares)
        return seconds, claimed, looked

    def _calibrate(self) -> None:
        """Roughly what a pass takes beyond a round's own cost; the first one is captured, and not counted.

        On values that it has met, and unchecked: whoever cheats here gets rounds of another length than is due.
        """

        def seconds(passes: int) -> float:
            return self.child.replay(passes, self.deadline)

        seconds(1)
        single = seconds(1)
        passes, more = 2, seconds(2) - single
        while more < 0.01 and passes < 1 << 16:
            passes = math.ceil(passes * min(8.0, 0.012 / max(more, 1e-5) + 1))
            more = seconds(passes) - single
        self.pass_seconds = max(more, 1e-6) / (passes - 1)

    def _part(self) -> None:
        """A pass over some of the sets must leave the others alone: a launch does its own work, and no other's."""
        if self.trusted or not self.shared or not self._several() or len(self.sets) < 2:
            return
        count = self.draw.randrange(1, len(self.sets))
        self._between()
        self.child.part(count, self.deadline)
        if any(_on_gpu(one).untouched() for one in self.sets[:count]):
            raise ChildFailure(Reason.not_written, "outputs were not written in a pass over some of the sets")
        if not intact(self.sets[count:]):
            raise ChildFailure(Reason.out_of_bounds, "outputs that belong to other calls were written")

    # --- what the parent does to the sets -----------------------------------------------------------------------------

    def _between(self, renewed: Sequence[AnySet] = ()) -> None:
        """After a round, and before the next: poison, then new values, in every set; wholly new ones, masks and indices
        too, in those `renewed`. The poison must stay.

        Poison comes first: work that the device still did when the kernel was "done" writes into it. A kernel that
        waits on the device for the next inputs would begin with them now, before it is launched.
        """
        for one in self.sets:
            one.poison(self.draw.getrandbits(1))
        for one in self.sets:
            self.refresh(one, self.draw, one in renewed)
        torch.cuda.synchronize()
        if self.trusted or not self.shared or not self.pass_seconds:
            return
        time.sleep(self.draw.uniform(0.0005, 0.001) + 2 * min(self.pass_seconds, 0.05))
        if not intact(self.sets):
            raise ChildFailure(
                Reason.late_write, "the device wrote outputs after the kernel was done, or before it was launched"
            )

    def _look(self, renewed: Sequence[AnySet], looked: bool, compares: bool) -> None:
        """Damage after a long round, and values where they are compared."""
        for one in self.sets:
            if damaged := one.canaries_intact():
                raise ChildFailure(Reason.out_of_bounds, f"bytes {', '.join(damaged)} were written in a timed loop")
            if changed := one.inputs_changed():
                raise ChildFailure(Reason.input_changed, f"input {changed[0]} was changed in a timed loop")
        if not looked:
            return
        if self.shared and any(_on_gpu(one).untouched() for one in self.sets):
            raise ChildFailure(Reason.not_written, "outputs that it had written before were not written again")
        if compares and self.verify is not None:
            others = [one for one in self.sets if one not in renewed] if self._several() else []
            self.verify([*renewed, *self.draw.sample(others, min(1, len(others)))])


class _Meddler:
    """New values in some sets, and poison in these and others, while a round runs.

    `in_time`: it was done before the round's last pass could begin, and before the child had answered.
    """

    def __init__(self, measuring: _Measuring, passes: int, changed: Sequence[AnySet]) -> None:
        self.measuring, self.changed = measuring, changed
        others = [one for one in measuring.sets if one not in changed]
        self.poisoned = measuring.draw.sample(others, min(_MEDDLED, len(others)))
        self.expected = passes * measuring.pass_seconds
        self.until = min(0.7, 0.9 * (passes - 1) / passes) * self.expected  # the last pass begins after that
        self.in_time = False

    def act(self) -> None:
        begin = time.perf_counter()
        time.sleep(min(0.25 * self.expected, 0.5 * self.until))
        if self.measuring.child.has_answered():
            return
        for one in self.changed:  # moved and turned only: an index or a mask that changed under a kernel could break it
            if self.measuring.rolls:
                self.measuring.refresh(one, self.measuring.draw, False)
            one.poison(one.pattern)
        for one in self.poisoned:
            one.poison(one.pattern)
        torch.cuda.synchronize()
        early = time.perf_counter() - begin < self.until
        self.in_time = early and not self.measuring.child.has_answered()


def intact(sets: Sequence[AnySet]) -> bool:
    """Whether every output of these sets still holds its poison, to the byte."""
    from autokernel.judge.cuda_buffers import all_intact

    return all_intact([_on_gpu(one) for one in sets])


def _on_gpu(one: AnySet) -> CudaSet:
    from autokernel.judge.cuda_buffers import CudaSet

    assert isinstance(one, CudaSet)
    return one
