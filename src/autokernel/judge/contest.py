"""Two sides timed against each other: blocks in fresh processes, on values neither has seen, checked while they run.

Each block's outputs are compared with the oracle on a few sets, chosen in secret, after rounds chosen in secret:
a kernel that is honest for its first N calls is caught by the blocks that follow.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autokernel.errors import NotTimed
from autokernel.judge import pairs as rule
from autokernel.judge import timing_cuda
from autokernel.judge.buffers import torch_dtype
from autokernel.judge.cases import Cases
from autokernel.judge.children import AnySet, ChildFailure, Kernel
from autokernel.judge.oracle import one_thread
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.sets import create_set
from autokernel.judge.timing import MAX_BYTES, Block, Plan, Refresh, measure_block, plan, probe, rolling
from autokernel.judge.tolerance import compare
from autokernel.records import Ceilings, Reason, TensorSpec, Timing
from autokernel.task.inputs import draw
from autokernel.task.layout import storage_elements

CONFIDENCE, KEEP_CONFIDENCE = 0.95, 0.995
_GUESS_BYTES_PER_SECOND = 1e10
_GUESS_CALL_SECONDS = 3e-6
_VERIFIED_SETS = 4
_MORE_AT_FIRST, _PASS_NOISE = 0.25, 2.5e-4
_LAUNCH_NOISE = 2.5e-4  # more, where the host launches every kernel: it may be late for the first ones
_PROBE_EVERY = 40  # blocks, after which a round's overhead is measured again
# how far below the measured floor is suspect: a GPU's curve over sizes is measured with kernels in graphs, as here
BELOW_FLOOR = {"cpu": 4.0, "cuda": 1.5}
_LEAST_PAIRS_TO_JUDGE = 4  # one block may be off by anything on a busy machine


class Contest:
    """Timing for one task. The buffers are kept from block to block and get new values before every round."""

    def __init__(self, cases: Cases, sandbox: Sandbox, deadline: float, ceilings: Ceilings | None) -> None:
        self.cases, self.sandbox, self.deadline, self.ceilings = cases, sandbox, deadline, ceilings
        self.task = cases.task
        self._sets: list[AnySet] = []
        self._rough: dict[Kernel, float] = {}
        self._overheads: deque[float] = deque(maxlen=5)
        self._probe: Block | None = None  # on a GPU: the last block of the kernel of ours
        self._probed = 0  # blocks since
        self.remarks: list[str] = []
        self._order = random.SystemRandom()
        self.on_gpu = self.task.device_class == "cuda"

    def planned(
        self, opponent: Kernel, candidate: Kernel, trusted_candidate: bool, quick: bool = False
    ) -> tuple[Plan, Plan]:
        """Blocks for each, over the same sets, so that the caches are as cold for one as for the other.

        A first block of each tells how long its call takes. The overhead of a round is measured anew, too. On a GPU
        the number of sets follows from their size alone, and the overhead of a round hardly counts.
        """
        if self.on_gpu:
            if not self._overheads or self._probed >= _PROBE_EVERY:
                self._measure_overhead()
            return (self._gpu_plan(1 if quick else 2),) * 2
        self._measure_overhead()
        try:
            theirs = self._seconds(opponent, opponent.kind in ("eager", "inductor"))
        except ChildFailure as failure:
            raise self._not_timed(opponent, failure) from failure
        plans = [plan(self._set_bytes(), each) for each in (theirs, self._seconds(candidate, trusted_candidate))]
        sets = max(one.sets for one in plans)
        return replace(plans[0], sets=sets), replace(plans[1], sets=sets)

    @property
    def cold(self) -> bool:
        """On a GPU: whether a model finds this task's tensors outside the L2 cache; ranks are made accordingly."""
        return timing_cuda.is_cold(self._set_bytes(), self._cache_bytes())

    def _gpu_plan(self, rounds: int = 2, cold: bool | None = None) -> Plan:
        chosen = self.cold if cold is None else cold
        most = self._most_bytes() if self.sandbox.transport == "ipc" else timing_cuda.HOST_BYTES
        size, cache = self._set_bytes(), self._cache_bytes()
        return timing_cuda.plan(size, cache, cold=chosen, rounds=rounds, most_bytes=most)

    def _cache_bytes(self) -> int:
        return int(self._properties().L2_cache_size)

    def _most_bytes(self) -> int:
        """Of all sets together; their sources take as much again."""
        return min(timing_cuda.MAX_BYTES, int(self._properties().total_memory) // 8)

    def _properties(self) -> Any:
        import torch

        return torch.cuda.get_device_properties(self.sandbox.index)

    def other_cache_us(self, kernel: Kernel) -> float | None:
        """Microseconds a call with the L2 cache in the other state than the one that ranks: one block.

        None where that state can't be had: tensors larger than the cache, or too few bytes to fill it three times.
        """
        planned = self._gpu_plan(cold=not self.cold)
        together = planned.sets * self._set_bytes()
        if together > self._cache_bytes() if self.cold else together < 3 * self._cache_bytes():
            return None
        return 1e6 * self.block(kernel, planned, trusted=False).seconds

    def _seconds(self, kernel: Kernel, trusted: bool) -> float:
        """Roughly what a call takes; only plans are made from it, so it may be remembered."""
        if kernel not in self._rough:
            size = self._set_bytes()
            guess = size / _GUESS_BYTES_PER_SECOND + _GUESS_CALL_SECONDS
            found = self.block(kernel, plan(size, guess, budget_seconds=0.01), trusted)
            if len(self._rough) > 64:
                self._rough.clear()
            self._rough[kernel] = found.seconds
        return self._rough[kernel]

    def block(self, kernel: Kernel, planned: Plan, trusted: bool) -> Block:
        """One block. Raises ChildFailure; a wrong output among the timed ones is one, too."""
        if trusted:
            return self._block(kernel, planned, None, math.inf)
        if not self._overheads:
            self._measure_overhead()
        return self._block(kernel, planned, self._verify, self.overhead)

    @property
    def overhead(self) -> float:
        """Seconds that a round takes besides its calls, as last measured on a kernel of ours; 0 before that."""
        return statistics.median(self._overheads) if self._overheads else 0.0

    def _measure_overhead(self) -> None:
        ours = probe(len(self.task.inputs))
        sets = max(2, min(4, MAX_BYTES // max(self._set_bytes(), 1)))
        planned = self._gpu_plan() if self.on_gpu else Plan(sets=sets, short=1, long=sets, rounds=6)
        try:
            block = self._block(ours, planned, None, math.inf)
            self._overheads.append(block.overhead)
            self._probe, self._probed = block, 0
        except ChildFailure as failure:
            detail = f"{failure.reason.replace('_', ' ')}: {failure.detail}"
            raise NotTimed(what="a kernel that only fills its outputs", task=self.task.id, detail=detail) from failure

    def fresh_values(self) -> None:
        """New draws for every set: what a confirmation runs on has nothing in common with what came before."""
        self._sets.clear()

    def run(
        self,
        opponent: Kernel,
        candidate: Kernel,
        decide: Callable[[Sequence[float]], rule.Decision],
        on_pair: Callable[[int, float, float], None] | None = None,
        trusted_candidate: bool = False,
        quick: bool = False,
    ) -> tuple[list[tuple[float, float]], str | None]:
        """Pairs (opponent, candidate) of seconds a call until `decide` ends them, and what is odd about the claims.

        `quick`: shorter blocks, on a GPU: for a first look, on which nothing is kept. Raises NotTimed when the opponent
        fails, ChildFailure when the candidate does.
        """
        their_plan, our_plan = self.planned(opponent, candidate, trusted_candidate, quick)
        blocks: list[Block] = []
        remarks: set[str] = set()

        def theirs() -> float:
            block = self.opponent_block(opponent, their_plan)
            if block.remark:
                remarks.add(f"the opponent: {block.remark}")
            return block.seconds

        def ours() -> float:
            block = self.block(candidate, our_plan, trusted_candidate)
            blocks.append(block)
            return block.seconds

        measured = rule.measure_pairs(theirs, ours, decide, order=self._order, first_look=1, on_pair=on_pair)
        claim = disagreement([1e6 * block.claimed for block in blocks], self.impossible_us())
        self.remarks = sorted(remarks | {block.remark for block in blocks if block.remark})
        probe = self._probe if self.sandbox.transport == "ipc" else None  # copies hide what a single pass takes
        return measured, claim or slower_at_first(blocks, probe)

    def opponent_block(self, opponent: Kernel, planned: Plan) -> Block:
        try:
            return self.block(opponent, planned, trusted=opponent.kind in ("eager", "inductor"))
        except ChildFailure as failure:
            raise self._not_timed(opponent, failure) from failure

    def timing(self, measured: Sequence[tuple[float, float]], wanted_gain: float, *, confirming: bool) -> Timing:
        """The record of these pairs. One pair has no interval: it is the ratio itself, unconfirmed."""
        ratios = [theirs / ours for theirs, ours in measured]
        if len(ratios) > 1:
            estimate, low, high = rule.interval(ratios, CONFIDENCE)
        else:
            estimate = low = high = ratios[0]
        ours = 1e6 * statistics.median(pair[1] for pair in measured)
        floor = self.floor_us()
        return Timing(
            incumbent_us=1e6 * statistics.median(pair[0] for pair in measured),
            candidate_us=ours,
            speedup=estimate,
            ci_low=low,
            ci_high=high,
            confidence=CONFIDENCE,
            floor_us=floor,
            ceiling_us=floor,
            pct_of_ceiling=None if floor is None else 100 * floor / ours,
            pairs=len(ratios),
            confirmed=confirming and rule.confirmed(ratios, wanted_gain, CONFIDENCE),
        )

    def floor_us(self) -> float | None:
        """What this device was measured to reach on the task's bytes and operations; None without ceilings."""
        if self.ceilings is None:
            return None
        return self.ceilings.floor_us(self.task.flops, self.task.min_bytes, self._fastest_dtype(self.ceilings.matrix))

    def _fastest_dtype(self, rates: Mapping[str, float]) -> str:
        """The dtype of the task whose products are fastest: no kernel may be expected to be slower than those."""
        found = {spec.dtype for spec in (*self.task.inputs, *self.task.outputs)} & set(rates)
        return max(found, key=lambda dtype: rates[dtype]) if found else "float32"

    def impossible_us(self) -> float:
        """No kernel takes less here.

        A CPU: two 64-byte accesses and two 64-byte multiply-adds a cycle and core, at 6 GHz. A GPU: the bytes that
        don't fit into its cache at the memory's peak by specification, the operations at the peak of its units.
        """
        if self.on_gpu:
            return self._impossible_on_gpu()
        per_second = self.sandbox.threads * 6e9
        return 1e6 * max(self.task.min_bytes / (per_second * 128), self.task.flops / (per_second * 64))

    def _impossible_on_gpu(self) -> float:
        if self.ceilings is None:
            return 0.0
        dtype = self._fastest_dtype(self.ceilings.spec_flops)
        rotating = self._gpu_plan().sets * self._set_bytes()  # of which the cache may hold its own size
        crossing = max(0.0, 1 - self._cache_bytes() / rotating) if self.cold else 0.0
        return self.ceilings.bound_us(self.task.flops, int(self.task.min_bytes * crossing), dtype)

    # --- one block ----------------------------------------------------------------------------------------------------

    def _block(
        self, kernel: Kernel, planned: Plan, verify: Callable[[Sequence[AnySet]], None] | None, overhead: float
    ) -> Block:
        with one_thread():
            while len(self._sets) < planned.sets:
                inputs = draw(self.task, self.cases.seed("timed inputs"))
                self._sets.append(create_set(inputs, self.task.outputs, self.task.device_class, self.sandbox.transport))
            shared: dict[str, Any] = {
                "refresh": self._refresh(), "deadline": self.deadline, "overhead": overhead, "verify": verify,
            }  # fmt: skip
            if not self.on_gpu:
                return measure_block(self.sandbox, kernel, self._sets, planned, **shared)
            self._probed += 1
            try:
                rolls = any(movable(spec.dtype, spec.domain) for spec in self.task.inputs)
                return timing_cuda.measure_block(self.sandbox, kernel, self._sets, planned, rolls=rolls, **shared)
            except timing_cuda.TooSlowToLook as error:
                detail = "this process was too slow to look into a timed round; is the machine busy?"
                raise NotTimed(what="a kernel", task=self.task.id, detail=detail) from error

    def _refresh(self) -> Refresh:
        def renew(buffers: AnySet) -> None:
            buffers.rewrite(draw(self.task, self.cases.seed("timed inputs")))

        if any(movable(spec.dtype, spec.domain) for spec in self.task.inputs):
            return rolling(self.task.inputs, renew)
        return lambda buffers, _draw, _wholly: renew(buffers)

    def _verify(self, sets: Sequence[AnySet]) -> None:
        for chosen in self._order.sample(list(sets), min(_VERIFIED_SETS, len(sets))):
            self._verify_set(chosen)

    def _verify_set(self, chosen: AnySet) -> None:
        where = self.task.device_class
        inputs = [value.to(where, copy=True) for value in chosen.inputs]
        expected = self.cases.oracle(self.task, inputs, None).expect(inputs, self.cases.seed("noise"))
        for spec, output, wanted in zip(self.task.outputs, chosen.outputs, expected, strict=True):
            found = compare(spec.name, output.to(where), wanted)
            if found.reason is not None:
                raise ChildFailure(found.reason, f"in a timed round: {found.explanation}")

    def _set_bytes(self) -> int:
        return sum(_bytes(spec) for spec in (*self.task.inputs, *self.task.outputs))

    def _not_timed(self, opponent: Kernel, failure: ChildFailure) -> NotTimed:
        what = {"source": "the kernel to beat", "model_new": "the kernel to beat"}.get(opponent.kind, opponent.kind)
        return NotTimed(what=what, task=self.task.id, detail=f"{failure.reason.replace('_', ' ')}: {failure.detail}")


def keep_rule(min_gain: float, cap: int) -> Callable[[Sequence[float]], rule.Decision]:
    return lambda ratios: rule.sequential(ratios, min_gain, cap, KEEP_CONFIDENCE)


def exactly(count: int) -> Callable[[Sequence[float]], rule.Decision]:
    """A number of pairs fixed beforehand."""
    return lambda ratios: "keep" if len(ratios) >= count else "continue"


def movable(dtype: str, domain: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and domain in ("real", "positive", "unit")


def disagreement(claimed_us: Sequence[float], bound_us: float) -> str | None:
    """Words when the candidate's own clock claims, in every block, less than any kernel can take.

    A false claim gains nothing, since only the parent's clock counts; it tells that someone tampers with clocks. Why
    not compare claims with the parent's times: on a busy machine waking a child takes longer than a small kernel, so
    that honest claims were seen at a tenth of the parent's slope.
    """
    if len(claimed_us) < 4 or max(claimed_us) >= bound_us:
        return None
    claim = f"its own clock claims {max(claimed_us):.3g} µs a call or less"
    return f"{claim}, where no kernel can take below {bound_us:.3g} µs"


def slower_at_first(blocks: Sequence[Block], probe: Block | None) -> str | None:
    """Words when single passes on new values take longer than repeats, in the median over blocks: skipped work.

    What a round takes besides its pass is known from a kernel of ours (`probe`); it is noisy by a quarter of a
    millisecond, and so is the limit. A pass that is no CUDA graph begins with a launch by the host each time, in
    singles as in repeats; what is said of it (`Block.remark`) is the child's word and changes little here.
    """
    singles = [block.single for block in blocks if block.single is not None]
    if len(singles) < _LEAST_PAIRS_TO_JUDGE or probe is None:
        return None
    sets = blocks[0].sets
    first = (statistics.median(singles) - probe.waking) / sets
    repeat = statistics.median(block.seconds for block in blocks)
    noise = _PASS_NOISE + (_LAUNCH_NOISE if any(block.remark for block in blocks) else 0.0)
    if first - repeat <= max(_MORE_AT_FIRST * repeat, noise / sets):
        return None
    return f"{1e6 * first:.3g} µs a call on new values, {1e6 * repeat:.3g} µs on repeated ones: repeats skip work"


def impossible(timing: Timing, bound_us: float, below_floor: float) -> Reason | None:
    """`time_impossible` when the candidate is faster than any kernel can be, `time_disagrees` when it takes less than
    1/`below_floor` of what the device reached on its bytes and operations. Fewer than four pairs tell nothing.
    """
    if timing.pairs < _LEAST_PAIRS_TO_JUDGE:
        return None
    if timing.candidate_us < bound_us:
        return Reason.time_impossible
    if (
        timing.floor_us is not None
        and timing.candidate_us * below_floor < timing.floor_us
        and not math.isinf(timing.floor_us)
    ):
        return Reason.time_disagrees
    return None


def _bytes(spec: TensorSpec) -> int:
    return storage_elements(spec.shape, spec.stride, spec.offset) * torch_dtype(spec.dtype).itemsize
