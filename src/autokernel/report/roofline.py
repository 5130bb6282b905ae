"""The roofline of a profile as coordinates of a drawing: intensity against rate, both logarithmic.

A region's point is its flops over the bytes it must move, and its flops over its time (Williams et al. 2009). The roofs
are measured ones. Bandwidth is that of the largest size measured, so a small tensor may stay below its own, lower roof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autokernel.records import Ceilings, Profile, RegionRow
from autokernel.report import units

WIDTH, HEIGHT = 680.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 16.0, 12.0, 40.0
_SMALLEST, _LARGEST = 3.0, 13.0  # radius of a point, by the region's share of the time


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    radius: float
    label: str
    generated: bool


@dataclass(frozen=True)
class Roof:
    label: str
    path: str  # of an SVG polyline
    y: float  # of its flat part


@dataclass(frozen=True)
class Roofline:
    points: tuple[Point, ...]
    roofs: tuple[Roof, ...]
    intensities: tuple[tuple[float, str], ...]  # ticks: x, text
    rates: tuple[tuple[float, str], ...]  # ticks: y, text


def roofline(profile: Profile) -> Roofline | None:
    """None where no region has both flops and bytes, or no roof was measured."""
    rows = [row for row in profile.regions if row.flops > 0 and row.min_bytes > 0 and row.time_us > 0]
    matrix = {dtype: profile.ceilings.matrix[dtype] for dtype in _dtypes(rows, profile.ceilings)}
    memory = profile.ceilings.bandwidth[-1][1]
    if not rows or not matrix:
        return None
    corners = [rate / memory for rate in matrix.values()]
    across = _Axis([*map(_intensity, rows), *corners], LEFT, WIDTH - RIGHT)
    up = _Axis([*map(_rate, rows), *matrix.values()], HEIGHT - BOTTOM, TOP)
    return Roofline(
        tuple(_point(row, across, up) for row in sorted(rows, key=lambda row: -row.share)),
        tuple(_roof(dtype, rate, memory, across, up) for dtype, rate in matrix.items()),
        tuple((across.at(10.0**power), _power(power)) for power in across.powers),
        tuple((up.at(10.0**power), f"{units.flops(10.0**power)}") for power in up.powers),
    )


class _Axis:
    """Decades that hold all values, on a stretch of the drawing."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._start, self._end = start, end
        self.powers = range(self._low, self._high + 1)
        self.least, self.most = 10.0**self._low, 10.0**self._high

    def at(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return round(self._start + part * (self._end - self._start), 1)


def _dtypes(rows: list[RegionRow], ceilings: Ceilings) -> list[str]:
    """Those of the regions; float32 where the profile does not say."""
    known = dict.fromkeys(row.dtype or "float32" for row in rows)
    return [dtype for dtype in known if ceilings.matrix.get(dtype)]


def _intensity(row: RegionRow) -> float:
    return row.flops / row.min_bytes


def _rate(row: RegionRow) -> float:
    return 1e6 * row.occurrences * row.flops / row.time_us


def _point(row: RegionRow, across: _Axis, up: _Axis) -> Point:
    size = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(max(0.0, min(row.share, 1.0)))
    away = f", {units.multiple(row.time_us / row.floor_us)} its floor" if row.floor_us > 0 else ""
    label = f"{row.title}: {units.percent(row.share)} of a call, {units.flops(_rate(row))}{away}"
    return Point(across.at(_intensity(row)), up.at(_rate(row)), round(size, 1), label, row.generator is not None)


def _roof(dtype: str, rate: float, memory: float, across: _Axis, up: _Axis) -> Roof:
    start = max(across.least, up.least / memory)  # where the slope enters the drawing
    corner = rate / memory
    path = [(start, memory * start), (corner, rate), (across.most, rate)]
    return Roof(dtype, " ".join(f"{across.at(x)},{up.at(y)}" for x, y in path), up.at(rate))


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"
