"""One timed block: a kernel in a fresh child, its time a call by the parent's clock, on values it has never seen.

A block is a series of rounds in random order, short and long. Before each round the parent gives every set that the
round will touch new values and poisons its outputs, while the child is stopped; in the round each set is used once. So
there is no repeat that a cache of outputs, or a skipped launch, could answer from: every timed call is one whose output
must be written. (The other design, verified blocks around timed loops that repeat their inputs, can't tell a kernel
that saves a third of the work on repeats from noise.)

The time a call is the slope between short and long rounds, which cancels what a round costs besides: waking the child,
the parent's read of a sample of the outputs. A candidate can learn how long a round is (it's in the frames above it),
and make the slope small by dawdling in short rounds, or by doing a whole round's work in its first call. So nothing
untrusted is credited with its own intercept: its time a call is at least what its long rounds took less the overhead
of a round, and that is measured on a kernel of ours (`probe`).

A round is refused when sampled outputs were written after "done" or not at all (`Child.loop`), and after one round,
chosen in secret, canaries and inputs are looked at and `verify` compares the outputs.

A block's rounds last 30 ms together: half of a block's cost is making fresh values, and what is to be averaged out is
the difference between processes, so more pairs of shorter blocks tell more in the same time than fewer long ones.

R sets, with R·bytes above 1.5 × the last-level cache where at most 64 sets do that; for small kernels enough sets to
make a long round last 3 ms. Small sets stay in cache, as activations do in a model; nothing is flushed.
"""

from __future__ import annotations

import functools
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autokernel.judge.buffers import torch_dtype
from autokernel.judge.children import AnySet
from autokernel.judge.sandbox import ChildFailure, Kernel, Sandbox
from autokernel.judge.turns import drawn
from autokernel.records import Reason, TensorSpec

MAX_SETS = 64
MAX_BYTES = 1 << 29
_ROUND_SECONDS = 3e-3
_DEFAULT_CACHE = 32 << 20
_CHECKED = 4  # sets whose values are compared in a block, each after another round where there are as many
_MOVABLE_DOMAINS = ("real", "positive", "unit")
_PROBE = """
import torch

scratch = torch.empty(1 << 17)


def launch(*tensors):
    if not tensors[-1].is_cuda:
        scratch.fill_(1)
    for out in tensors[{inputs}:]:
        out.fill_(1)
"""

Refresh = Callable[[AnySet, random.Random, bool], None]  # the last: wholly new values, however long it takes
Verify = Callable[[Sequence[AnySet]], None]


@dataclass(frozen=True)
class Plan:
    """`sets`: R. `short`, `long`: calls of the two kinds of round (long ≤ R). `rounds`: of each kind."""

    sets: int
    short: int
    long: int
    rounds: int


@dataclass(frozen=True)
class Block:
    """`seconds` a call. `overhead`: of a round, by its own slope. `claimed`: the slope by its own clock (a claim).

    `rounds`: (calls, seconds).
    """

    seconds: float
    overhead: float
    claimed: float
    rounds: tuple[tuple[int, float], ...]
    # on a GPU, whose rounds repeat their values: seconds of a single pass over all sets, every value new; what such a
    # round took beyond its pass; and how many sets there were
    single: float | None = None
    waking: float = 0.0
    sets: int = 1
    remark: str = ""  # how the child says it ran (a claim): "no CUDA graph: ..."


def plan(
    set_bytes: int, seconds_per_call: float, *, budget_seconds: float = 0.03, cache_bytes: int | None = None
) -> Plan:
    """How to time a kernel that takes about `seconds_per_call` on sets of `set_bytes` (inputs and outputs).

    `budget_seconds`: what the rounds of a block should last together, at least.
    """
    cache = last_level_cache() if cache_bytes is None else cache_bytes
    size, seconds = max(set_bytes, 1), max(seconds_per_call, 1e-7)
    by_time = math.ceil(_ROUND_SECONDS / seconds)
    by_cache = math.ceil(1.5 * cache / size)
    wanted = max(by_time, by_cache if by_cache <= 64 else 1, 4)
    sets = max(2, min(wanted, MAX_SETS, MAX_BYTES // size))
    short, long = max(1, sets // 4), sets
    one = (short + long) * seconds
    least = 3 if one < 0.1 else 1
    return Plan(sets, short, long, max(least, min(16, math.ceil(budget_seconds / one))))


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
    order: random.Random | None = None,
) -> Block:
    """Time `kernel` over `sets` in a fresh child, which is ended afterwards.

    `refresh(set, random)` gives a set new inputs (see `rolling`). `verify(sets)` raises ChildFailure when outputs are
    wrong; it is called after up to `_CHECKED` long rounds, chosen in secret: since fast rounds count more than slow
    ones, a kernel that is wrong in every fourth of them would gain, and must not get past.
    `deadline`: seconds for each step. `overhead`: see `seconds_per_call`.
    Raises ChildFailure, SandboxDied.
    """
    draw = order or random.SystemRandom()
    used = list(sets[: planned.sets])
    if len(used) < planned.long:
        raise ValueError(f"{planned.long} sets are needed for this plan, not {len(used)}")
    kinds = [planned.short] * planned.rounds + [planned.long] * planned.rounds
    draw.shuffle(kinds)
    long_rounds = [i for i, calls in enumerate(kinds) if calls == planned.long]
    checked = draw.sample(long_rounds, min(_CHECKED, len(long_rounds)))
    parent: list[tuple[int, float]] = []
    claims: list[tuple[int, float]] = []
    _prepare(used, refresh, draw)  # before there is a child: what another side computed here is not for its eyes
    child = sandbox.spawn(kernel, used, deadline=deadline)
    try:
        child.loop(len(used), deadline)  # warm-up: pages, threads, whatever a kernel sets up on its first call
        for index, calls in enumerate(kinds):
            first = draw.randrange(len(used))
            touched = [used[(first + i) % len(used)] for i in range(calls)]
            _prepare(touched, refresh, draw)
            parent.append((calls, child.loop(calls, deadline, first)))
            claims.append((calls, child.claimed_seconds))
            if index in checked:
                some = draw.sample(touched, min(-(-_CHECKED // len(checked)), len(touched)))
                _look(touched, some, verify)
        child.still()  # nor while the last outputs were looked at
    finally:
        child.close()
    return Block(
        seconds_per_call(parent, planned, overhead),
        round_overhead(parent, planned),
        seconds_per_call(claims, planned, math.inf),
        tuple(parent),
    )


def probe(inputs: int) -> Kernel:
    """A kernel of ours to measure a round's overhead with: it wakes what threads there are and fills the outputs."""
    return Kernel("source", _PROBE.format(inputs=inputs))


def rolling(specs: Sequence[TensorSpec], renew: Callable[[AnySet], None] | None = None) -> Refresh:
    """New values by rotating the elements of the inputs that are drawn alike (real numbers); masks and indices stay.

    Besides, bits of theirs are flipped, others in every round (turns.py): nothing of an earlier result can be reused.
    It costs a copy. A task with nothing to rotate needs a `refresh` that draws (and calls `BufferSet.rewrite`). `renew`
    does so, for those who ask for wholly new values.
    """
    movable = [s.domain in _MOVABLE_DOMAINS and torch_dtype(s.dtype).is_floating_point for s in specs]
    kinds = [(s.dtype, may and _signed(s), s.domain == "unit") for may, s in zip(movable, specs, strict=True)]

    def refresh(buffers: AnySet, draw: random.Random, wholly: bool) -> None:
        if wholly and renew is not None:
            renew(buffers)
        shift = draw.getrandbits(40)
        turns = [drawn(dtype, signed=signed, below_one=unit, draw=draw) for dtype, signed, unit in kinds]
        buffers.roll(movable, shift, turns)

    return refresh


def _signed(spec: TensorSpec) -> bool:
    """Whether the negative of an input is as likely a value of it: real, both signs seen or nothing known, finite."""
    seen = spec.statistics
    if spec.domain != "real" or spec.dtype not in ("float16", "bfloat16", "float32", "float64"):
        return False
    if seen is None or seen.minimum is None or seen.maximum is None:
        return True
    return seen.minimum < 0 < seen.maximum and seen.fraction_inf == 0


@functools.cache
def last_level_cache() -> int:
    """Bytes of the largest cache that the kernel lists for processor 0; 32 MiB when it lists none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])", path.read_text().strip())
        if found:
            sizes.append(int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes, default=_DEFAULT_CACHE)


def _prepare(sets: Sequence[AnySet], refresh: Refresh, draw: random.Random) -> None:
    for one in sets:
        refresh(one, draw, False)
        one.poison(draw.getrandbits(1))


def _look(sets: Sequence[AnySet], some: Sequence[AnySet], verify: Verify | None) -> None:
    """Damage in any of a round's sets; values in some of them."""
    for one in sets:
        if damaged := one.canaries_intact():
            raise ChildFailure(Reason.out_of_bounds, f"bytes {', '.join(damaged)} were written in a timed loop")
        if changed := one.inputs_changed():
            raise ChildFailure(Reason.input_changed, f"input {changed[0]} was changed in a timed loop")
    if verify is not None:
        verify(some)


def seconds_per_call(rounds: Sequence[tuple[int, float]], planned: Plan, overhead: float) -> float:
    """The slope from short to long rounds, but no less than what long rounds took beyond `overhead` (of a round).

    `overhead` is infinite for a side that is trusted: then the slope alone counts. Quartiles, because what disturbs a
    round only ever adds time. Where noise makes that no time at all (a machine under load, a kernel of a few
    microseconds), the long rounds' own time a call stands in, which includes what a round costs besides.
    """
    slope, long = _slope(rounds, planned)
    found = max(slope, (long - overhead) / planned.long)
    return found if found > 0 else long / planned.long


def round_overhead(rounds: Sequence[tuple[int, float]], planned: Plan) -> float:
    """What a round takes beyond its calls, by the slope: to be believed of a kernel of ours only. Seconds, ≥ 0."""
    slope, long = _slope(rounds, planned)
    return max(0.0, long - max(slope, 0.0) * planned.long)


def _slope(rounds: Sequence[tuple[int, float]], planned: Plan) -> tuple[float, float]:
    """The increase of the lower quartile over the increase in calls, and the long rounds' quartile."""
    short = _quartile([s for calls, s in rounds if calls == planned.short])
    long = _quartile([s for calls, s in rounds if calls == planned.long])
    return (long - short) / (planned.long - planned.short), long


def _quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]
