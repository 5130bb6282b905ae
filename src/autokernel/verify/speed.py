"""Whole-model times of several variants, interleaved: every round runs one block of each, in random order.

What drifts (frequency, another process, memory pressure) then falls on all variants alike, and only ratios within a
round are compared. A block is long enough that the clock and a context switch are small against it. On a device that
works on while the host goes ahead, the clock starts when it is idle and stops when it is done (`wait`). There a block
begins with calls that are not timed: a GPU's clock frequency follows what it has been doing, and after a variant that
leaves it idle between kernels the next one ran faster for some milliseconds.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autokernel.verify.interval import Interval, interval

if TYPE_CHECKING:
    from collections.abc import Iterator

Call = Callable[[], object]
Wait = Callable[[], None]

BLOCK_SECONDS = 0.05  # more rounds of short blocks tell more than few long ones where single calls are disturbed
_LEAD = 0.6  # of a block, untimed before it, on a device that works on by itself

_LEAST_CALLS = 3  # in a block that ends with waiting for a device


@dataclass(frozen=True)
class Rounds:
    """Seconds a call, one figure per round and variant; figures at the same position are of the same round.

    Some variants may have been left out of later rounds.
    """

    seconds: Mapping[str, tuple[float, ...]]

    @property
    def pairs(self) -> int:
        return min(len(times) for times in self.seconds.values())

    def followed_by(self, more: Rounds) -> Rounds:
        """With later rounds of some of the variants. Those must have been in every round before."""
        if any(len(self.seconds[name]) != max(map(len, self.seconds.values())) for name in more.seconds):
            raise ValueError("later rounds can only follow for variants that were in every round")
        return Rounds({name: (*times, *more.seconds.get(name, ())) for name, times in self.seconds.items()})

    def ms(self, name: str) -> float:
        """Median milliseconds a call."""
        return 1e3 * statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str, confidence: float = 0.95) -> Interval:
        """Time of `name` over time of `to`, paired by round; above 1: `to` is faster."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=False)
        return interval([slow / fast for slow, fast in pairs], confidence)

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.ms)


def measure(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    min_rounds: int = 6,
    max_rounds: int = 100,
    block_seconds: float = BLOCK_SECONDS,
    wait: Wait | None = None,
    generator: random.Random | None = None,
) -> Rounds:
    """Rounds of every call until `seconds` have passed (but `min_rounds` at least, `max_rounds` at most).

    `wait` returns when the device has done all that the calls asked of it (None: calls return when they are done).
    The caller has warmed the calls up: compilation must not fall into a block.
    """
    shuffle = generator or random.Random()
    repeats = {name: _repeats(call, block_seconds, wait) for name, call in calls.items()}
    lead = _LEAD if wait is not None else 0.0
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.monotonic() + seconds
    with _no_collection():
        for number in range(max_rounds):
            if number >= min_rounds and time.monotonic() > end:
                break
            order = list(calls)
            shuffle.shuffle(order)
            for name in order:
                times[name].append(_block(calls[name], repeats[name], wait, round(lead * repeats[name])))
    return Rounds({name: tuple(found) for name, found in times.items()})


def _repeats(call: Call, block_seconds: float, wait: Wait | None) -> int:
    one = min(_block(call, 1, wait) for _ in range(2))
    # one call alone is never a block where a device runs behind: waiting for it costs what overlaps in a user's loop
    least = 1 if wait is None else _LEAST_CALLS
    return max(least, math.ceil(block_seconds / max(one, 1e-7)))


def _block(call: Call, repeats: int, wait: Wait | None, lead: int = 0) -> float:
    for _ in range(lead):
        call()
    if wait is not None:
        wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if wait is not None:
        wait()
    return (time.perf_counter() - begin) / repeats


@contextmanager
def _no_collection() -> Iterator[None]:
    """A garbage collection would fall on whichever variant happens to run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
