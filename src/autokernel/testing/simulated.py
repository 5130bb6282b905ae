"""Devices that exist as noise only: what the judge's rules decide where the truth is known.

A device draws the two blocks of a pair as the judge measures them: each in random order, with whatever disturbs a
block. The chain is the judge's own: screen ▸ sequential ▸ confirm, from the same functions.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from autokernel.judge.pairs import confirmed, interval, orders, screen, sequential, spread
from autokernel.judge.thresholds import Thresholds, confirm_pairs, thresholds

AA_PAIRS = 8  # of the trial that a run begins with

Shape = Literal["normal", "student"]


@dataclass
class Device:
    """`noise`: relative standard deviation of a pair. A block is e^noise, with what follows on top.

    `shape`: of a block's noise; "student" has 3 degrees of freedom, scaled to the same standard deviation. `outliers`:
    share of blocks that take `outlier` longer. `one_sided`: only blocks of the incumbent are hit, which looks like a
    gain: worse than any machine. `drift`: a block takes this much longer than the one before it in its pair.
    `memory`: of an AR(1) process over blocks, whose part of the noise's variance is one half when it is not 0.
    """

    noise: float
    seed: int
    shape: Shape = "normal"
    outliers: float = 0.0
    outlier: float = 0.3
    one_sided: bool = False
    drift: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._level = self._draw.gauss(0, 1)
        self._orders = orders(self._draw)

    def ratio(self, gain: float) -> float:
        """Incumbent time / candidate time of one pair of a candidate that is faster by `gain`."""
        incumbent_first = next(self._orders)
        first, second = self._block(incumbent_first), self._block(not incumbent_first) + self.drift
        incumbent, candidate = (first, second) if incumbent_first else (second, first)
        return (1 + gain) * math.exp(incumbent - candidate)

    def ratios(self, gain: float, count: int) -> list[float]:
        return [self.ratio(gain) for _ in range(count)]

    def _block(self, is_incumbent: bool) -> float:
        own = self._noise()
        if self.memory:
            fresh = math.sqrt(1 - self.memory**2) * self._draw.gauss(0, 1)
            self._level = self.memory * self._level + fresh
            own = (own + self._level) / math.sqrt(2)
        hit = self._draw.random() < self.outliers and (is_incumbent or not self.one_sided)
        return self.noise / math.sqrt(2) * own + (math.log1p(self.outlier) if hit else 0.0)

    def _noise(self) -> float:
        normal = self._draw.gauss(0, 1)
        if self.shape == "normal":
            return normal
        squares = sum(self._draw.gauss(0, 1) ** 2 for _ in range(3))
        return normal / math.sqrt(squares / 3) / math.sqrt(3)


@dataclass(frozen=True)
class Attempt:
    """One candidate's way. `blocks`: pairs timed, of the screen, the test and the confirmation.

    `estimate` and the bounds are those of the confirmation; None where it didn't come to one. `chosen_on`: the estimate
    of the sequential test that chose the candidate, which is never reported.
    """

    kept: bool
    ended: Literal["screen", "test", "confirm"]
    blocks: tuple[int, int, int]
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    chosen_on: float | None = None


def limits(device: Device, *, most_pairs: int = 40, pairs: int = AA_PAIRS) -> Thresholds:
    """What a run on this device works with: from a trial of a kernel against itself."""
    return thresholds(spread(device.ratios(0.0, pairs)), most_pairs=most_pairs)


def attempt(device: Device, gain: float, limit: Thresholds) -> Attempt:
    """Screen, test and confirm one candidate."""
    looked = _until(lambda: device.ratio(gain), lambda seen: screen(seen, limit.spread))
    if screen(looked, limit.spread) != "keep":
        return Attempt(False, "screen", (len(looked), 0, 0))
    tested = _until(lambda: device.ratio(gain), lambda seen: sequential(seen, limit.min_gain, limit.cap))
    if sequential(tested, limit.min_gain, limit.cap) != "keep":
        return Attempt(False, "test", (len(looked), len(tested), 0))
    new = device.ratios(gain, confirm_pairs(len(tested), limit.cap))
    estimate, low, high = interval(new)
    return Attempt(
        confirmed(new, limit.min_gain),
        "confirm",
        (len(looked), len(tested), len(new)),
        estimate,
        low,
        high,
        interval(tested)[0],
    )


def attempts(device: Device, gain: float, count: int, *, a_run: int = 300, most_pairs: int = 40) -> list[Attempt]:
    """`count` attempts; every `a_run` of them begin with a new trial of the device's spread."""
    found: list[Attempt] = []
    for number in range(count):
        if number % a_run == 0:
            limit = limits(device, most_pairs=most_pairs)
        found.append(attempt(device, gain, limit))
    return found


def again(device: Device, seed: int) -> Device:
    """The same device with other draws."""
    return dataclasses.replace(device, seed=seed)


def _until(measure: Callable[[], float], rule: Callable[[Sequence[float]], str]) -> list[float]:
    ratios = [measure()]
    while rule(ratios) == "continue":
        ratios.append(measure())
    return ratios
