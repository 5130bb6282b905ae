"""One timed block on a GPU: passes over R sets as CUDA graphs in a fresh child, by the parent's clock.

A pass is one launch over each set. Rounds repeat it for about 30 and 100 ms; the slope between them is the time of a
pass. Eight fresh children of one kernel agree to 0.5 % like this, where rounds of a few milliseconds agree to 5 %.

Rounds repeat their inputs, so what must keep a kernel from saving work on repeats is done while it runs: in a long
round the parent gives new values to some sets and poisons the outputs of others. Whoever skips the writing of what it
wrote before leaves poison; whoever remembers results leaves the old ones. And before them, single passes on values
that are new in every set are timed on their own: what takes longer there than in a repeat is SUSPECT (`first_pass`).

A process that is stopped has not stopped its GPU work. So the outputs are poisoned after every round, and must stay so
for twice the time of a pass: a "done" that came too early, or a kernel that waits for the next inputs on the device,
writes into the poison.

R sets are more than the L2 cache holds (R·bytes ≥ 3 × L2) for a task that finds its tensors cold, and half of it at
most for one that finds them in the cache.
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
MAX_BYTES = 4 << 30
SHORT_SECONDS, LONG_SECONDS = 0.03, 0.1
SINGLES = 6
QUICK = 0.5  # how much shorter a block of one round each is: it tells whether a look is worth it, no more
_MEDDLED = 8  # sets that are touched while a round runs
_CHANGED = 2  # of these, sets that get new values
_ATTEMPTS = 3


def plan(set_bytes: int, cache_bytes: int, *, cold: bool, rounds: int = 2) -> Plan:
    """R sets for tensors that are found cold, or in the cache; rounds of each length."""
    size = max(set_bytes, 1)
    wanted = math.ceil(3 * cache_bytes / size) if cold else cache_bytes // 2 // size
    most = max(1, min(MAX_SETS, MAX_BYTES // size))
    return Plan(sets=max(2 if cold else 1, min(wanted, most)), short=0, long=0, rounds=rounds)


def is_cold(set_bytes: int, cache_bytes: int) -> bool:
    """What a model finds cold: tensors that together take more than half of the cache."""
    return 2 * set_bytes > cache_bytes


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
) -> Block:
    """Time `kernel` over `sets` in a fresh child, which is ended afterwards; as `timing.measure_block`.


    `overhead`: the most that a round took besides its passes, as measured on a kernel of ours: what a kernel that
    dawdles in short rounds could hide. Infinite: the kernel is trusted, and its own slope counts.
    Raises ChildFailure, SandboxDied.
    """
    draw = random.SystemRandom()
    used = list(sets[: planned.sets])
    draw.shuffle(used)
    return _Measuring(sandbox, kernel, used, planned, refresh, deadline, overhead, verify, draw).run()


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
    ) -> None:
        self.kernel, self.sets, self.planned, self.refresh = kernel, sets, planned, refresh
        self.deadline, self.overhead, self.verify, self.draw = deadline, overhead, verify, draw
        self.trusted = math.isinf(overhead)
        self.pass_seconds = 0.0
        self.shared = sandbox.transport == "ipc"  # else the parent sees nothing while a round runs (host_buffers.py)
        self.verify_at = draw.randrange(planned.rounds)  # the long round after which values are compared: a secret
        self._prepare()
        self.child: Child = sandbox.spawn(kernel, sets, deadline=deadline)

    def run(self) -> Block:
        try:
            self.child.loop(len(self.sets), self.deadline)
            self._settle()
            self._calibrate()
            singles = [self._round(1)[0] for _ in range(SINGLES if self.planned.rounds > 1 else 1)]
            rounds = self._rounds()
        finally:
            self.child.close()
        return self._block(singles, rounds)

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
        first = (single - self.overhead) / count if not self.trusted and len(singles) > 1 else None
        return Block(
            seconds=one / count,
            overhead=max(0.0, max(singles) - one),
            claimed=max(slope(2), 0.0) / count,
            rounds=tuple((n * count, seconds) for n, seconds, _ in rounds),
            first_pass=first,
            remark=self.child.remark,
        )

    def _rounds(self) -> list[tuple[int, float, float]]:
        """(passes, seconds, claimed seconds) of the timed rounds, in random order; one at least is meddled with."""
        length = QUICK if self.planned.rounds == 1 else 1.0
        short = max(1, round(length * SHORT_SECONDS / self.pass_seconds))
        long = max(short + 1, round(length * LONG_SECONDS / self.pass_seconds))
        kinds = [short, long] * self.planned.rounds
        self.draw.shuffle(kinds)
        found: list[tuple[int, float, float]] = []
        seen, longs = False, 0
        for passes in kinds:
            meddler = None
            if passes == long and not self.trusted and self.shared:
                meddler = _Meddler(self, passes, verifies=longs == self.verify_at)
            found.append((passes, *self._round(passes, meddler)))
            if not self.shared and passes == long and not self.trusted and longs == self.verify_at:
                self._undamaged()
                self._compare(self.draw.sample(self.sets, min(_CHANGED, len(self.sets))))
            longs += passes == long
            seen = seen or (meddler is not None and meddler.verifies and meddler.in_time)
        for _ in range(_ATTEMPTS):
            if seen or self.trusted or not self.shared:
                return found
            meddler = _Meddler(self, long, verifies=True)
            self._round(long, meddler)
            seen = meddler.in_time
        raise ChildFailure(Reason.harness, "this process was too slow to look into a timed round")

    def _round(self, passes: int, meddler: _Meddler | None = None) -> tuple[float, float]:
        """Seconds, and what the child claims, of passes that begin with new values in every set."""
        self._prepare()
        seconds = self.child.replay(passes, self.deadline, meddler.act if meddler else None)
        claimed = self.child.claimed_seconds
        if meddler is not None:
            self._look(meddler)
        self._settle()
        return seconds, claimed

    def _calibrate(self) -> None:
        """Roughly what a pass takes beyond a round's own cost; the first one is captured, and not counted."""
        self._round(1)
        single = self._round(1)[0]
        passes, more = 2, self._round(2)[0] - single
        while more < 0.01 and passes < 1 << 16:
            passes = math.ceil(passes * min(8.0, 0.012 / max(more, 1e-5) + 1))
            more = self._round(passes)[0] - single
        self.pass_seconds = max(more, 1e-6) / (passes - 1)

    def _prepare(self) -> None:
        for one in self.sets:
            self.refresh(one, self.draw)
            one.poison(self.draw.getrandbits(1))
        torch.cuda.synchronize()

    def _look(self, meddler: _Meddler) -> None:
        """Damage, and values, after a round that was meddled with."""
        self._undamaged()
        for one in self.sets:
            if meddler.in_time and _on_gpu(one).untouched():
                raise ChildFailure(Reason.not_written, "outputs that it had written before were not written again")
        if meddler.in_time and meddler.verifies:
            self._compare([*meddler.changed, *meddler.poisoned[:1]])

    def _undamaged(self) -> None:
        for one in self.sets:
            if damaged := one.canaries_intact():
                raise ChildFailure(Reason.out_of_bounds, f"bytes {', '.join(damaged)} were written in a timed loop")
            if changed := one.inputs_changed():
                raise ChildFailure(Reason.input_changed, f"input {changed[0]} was changed in a timed loop")

    def _compare(self, sets: Sequence[AnySet]) -> None:
        if self.verify is not None:
            self.verify(sets)

    def _settle(self) -> None:
        """Nothing may be written once a round is over, however the device goes on."""
        if self.trusted or not self.shared:
            return
        for one in self.sets:
            one.poison(self.draw.getrandbits(1))
        torch.cuda.synchronize()
        time.sleep(0.0005 + 2 * min(self.pass_seconds, 0.05))
        if not all(_on_gpu(one).intact() for one in self.sets):
            raise ChildFailure(Reason.late_write, "the device was still writing outputs after the kernel was done")


class _Meddler:
    """New values and poison in some sets while a round runs. `in_time`: early enough for the round's last pass.

    `verifies`: values are compared afterwards.
    """

    def __init__(self, measuring: _Measuring, passes: int, *, verifies: bool) -> None:
        self.verifies = verifies
        sets = measuring.draw.sample(measuring.sets, min(_MEDDLED, len(measuring.sets)))
        changed = _CHANGED if measuring.planned.rounds > 1 else 1
        self.changed, self.poisoned = sets[:changed], sets[changed:]
        self.refresh, self.draw = measuring.refresh, measuring.draw
        self.expected = passes * measuring.pass_seconds
        self.in_time = False

    def act(self) -> None:
        begin = time.perf_counter()
        time.sleep(0.25 * self.expected)
        for one in self.changed:
            self.refresh(one, self.draw)
            one.poison(one.pattern)
        for one in self.poisoned:
            one.poison(one.pattern)
        torch.cuda.synchronize()
        self.in_time = time.perf_counter() - begin < 0.7 * self.expected


def _on_gpu(one: AnySet) -> CudaSet:
    from autokernel.judge.cuda_buffers import CudaSet

    assert isinstance(one, CudaSet)
    return one
