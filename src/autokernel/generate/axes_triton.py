"""The values of each choice for Triton, the likeliest first, by what was measured on streaming kernels.

A thread does best with about 16 elements of a row in flight (two vectors of 16 bytes in half precision), a program with
about 2,000 elements, so short rows come several to a program; rows beyond 16,000 elements leave the registers, and a
loop whose later passes find the row in L2 is faster. A grid that fills the device once and runs on from tile to tile,
the next one fetched while this one reduces, saves the tail of the last wave.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from autokernel.generate.grid_triton import LARGEST, grid_of, power
from autokernel.generate.layout import transposed
from autokernel.generate.online_triton import online
from autokernel.generate.plan import Nest, Plan
from autokernel.generate.schedule_triton import TritonSchedule

Axes = dict[str, tuple[Any, ...]]
_HALF = ("bfloat16", "float16")
_LONG = 16384  # columns of a row beyond which it is looped over first
_ELEMENTS = 2048  # of a program
_TILE_WARPS = (4, 8, 2, 16, 1)


@dataclass(frozen=True)
class _Shape:
    """Of the nest that does most: rows, columns, and whether values are stored in half precision."""

    row: bool
    rows: int
    width: int
    half: bool
    online: bool
    tiled: bool  # some load runs across the rows of the tile

    @property
    def padded(self) -> int:
        return power(self.width)


def _shape(plan: Plan) -> _Shape:
    nest = max(plan.nests, key=_work)
    grid = grid_of(nest, TritonSchedule(rows=1, block=1))
    over = [math.prod(v.extent for v in found) for found in grid.loops.over.values()]
    width = max([math.prod(v.extent for v in grid.loops.columns), *over])
    large = max(b.elements for b in (*plan.inputs, *plan.outputs))
    floats = [b for b in (*plan.inputs, *plan.outputs) if "float" in b.dtype and 4 * b.elements >= large]
    half = bool(floats) and any(b.dtype in _HALF for b in floats)
    every = (*grid.loops.rows, *grid.loops.columns)
    tiled = not nest.reductions and bool(every) and transposed(nest, every, grid.loops.index) is not None
    return _Shape(bool(nest.reductions), grid.count, width, half, any(map(online, plan.nests)), tiled)


def _work(nest: Nest) -> int:
    grid = grid_of(nest, TritonSchedule(rows=1, block=1))
    return grid.count * math.prod(v.extent for v in grid.loops.columns)


def axes(plan: Plan, threads: int) -> Axes:
    """The values of each choice, those that matter most first. `threads` is the processor's, of no use here."""
    shape = _shape(plan)
    found = _row_axes(shape) if shape.row else _pointwise_axes(shape)
    fast = ("reciprocal", "fast", "exact") if shape.row else ("fast", "exact")
    found["exp"] = ("fast", "folded", "exact") if shape.half else ("exact", "fast", "folded")
    found["divide"] = fast if shape.half else ("exact", *fast[:-1])
    found["evict"] = ("none", "hints")
    return found


def _row_axes(shape: _Shape) -> Axes:
    long = shape.padded > _LONG
    structures = ["loop", "whole"] if long else ["whole", "loop"]
    if shape.padded > LARGEST:
        structures.remove("whole")
    structures += ["split"] if shape.padded != shape.width and not long else []
    if shape.online:
        structures.insert(0 if long else len(structures), "online")
    rows = _rows(shape)
    warps = 8 if long else _warps(rows * shape.padded)
    resident = (max(1, min(8, 32 // warps)), max(1, min(8, 16 // warps)), 1)
    return {
        "structure": tuple(structures),
        "warps": _around(warps, 1, 32, (1, 2, 0.5, 4, 0.25)),
        "rows": _around(rows, 1, 64, (1, 2, 0.5, 4)),
        "block": (0, *(b for b in (8192, 2048, 16384, 1024) if b < shape.padded)),
        "persistent": tuple(dict.fromkeys((0, *resident))),
        "stages": (1, 2, 3),
    }


def _rows(shape: _Shape) -> int:
    """Rows of a program, while enough programs are left to fill a device."""
    wanted = max(1, _ELEMENTS // shape.padded)
    while wanted > 1 and shape.rows // wanted < 512:
        wanted //= 2
    return min(wanted, 64)


def _warps(elements: int) -> int:
    return min(32, max(1, power(elements) // 512))


def _around(middle: int, low: int, high: int, factors: tuple[float, ...]) -> tuple[int, ...]:
    found = dict.fromkeys(int(middle * f) for f in factors if low <= middle * f <= high)
    return tuple(found) or (min(max(middle, low), high),)


def _pointwise_axes(shape: _Shape) -> Axes:
    block = min(shape.padded, 1024)
    rows = max(1, min(_ELEMENTS // block, power(shape.rows))) if shape.rows > 1 else 1
    found: Axes = {"order": ("tiles", "stores", "loads") if shape.tiled else ("stores", "loads")}
    if shape.tiled:
        found["rows"], found["block"] = (32, 64, 16, 128), (64, 32, 128, 16)
    else:
        found["block"] = _around(block, 16, max(16, min(shape.padded, 8192)), (1, 2, 0.5, 4, 8))
        found["rows"] = _around(rows, 1, 128, (1, 2, 0.5, 4, 0.25)) if shape.rows > 1 else (1,)
    found["warps"] = _TILE_WARPS
    found["persistent"], found["stages"] = (0, 8, 4, 2), (1, 2, 3)
    return found


def bases(values: Axes) -> list[TritonSchedule]:
    """Schedules around which a value must change the text to be worth having."""
    guess = TritonSchedule(**{axis: options[0] for axis, options in values.items()})
    found = [guess, dataclasses.replace(guess, persistent=2, stages=2)]
    if "structure" in values:
        found += [dataclasses.replace(guess, structure=s) for s in values["structure"] if s != guess.structure]
        found.append(dataclasses.replace(guess, structure="loop", stages=2))
    return found


def openings(plan: Plan, values: Axes) -> list[TritonSchedule]:
    """Five schedules that differ in kind, each a good guess of its own."""
    shape = _shape(plan)
    guess = TritonSchedule(**{axis: options[0] for axis, options in values.items()})
    chosen = _row_openings(shape, guess) if shape.row else _pointwise_openings(shape, guess)
    return [dataclasses.replace(guess, **change) for change in chosen]


def _row_openings(shape: _Shape, guess: TritonSchedule) -> list[dict[str, Any]]:
    warps, rows = guess.warps, guess.rows
    persistent: dict[str, Any] = {"structure": "whole", "persistent": max(1, min(8, 32 // warps)), "stages": 2}
    if shape.padded <= _LONG:
        second = {"structure": "split"} if shape.width * 4 <= shape.padded * 3 else {"evict": "hints"}
        fewer = {"warps": max(1, warps // 2)} if warps > 1 else {"rows": max(1, rows // 2)}
        last: dict[str, Any] = {"rows": 2 * rows, "warps": min(32, 2 * warps)}
        if shape.padded >= 4096:
            last = {"structure": "loop", "block": shape.padded // 2, "warps": max(4, warps // 2), "stages": 2}
        return [{}, persistent, {"warps": min(32, warps * 2)}, {**fewer, **second}, last]
    twice: list[dict[str, Any]] = [
        {"structure": "loop", "block": 16384, "warps": 8},
        {"structure": "loop", "block": 8192, "warps": 8, "stages": 2},
        {"structure": "whole", "warps": 32}
        if shape.padded <= LARGEST
        else {"structure": "loop", "block": 16384, "warps": 16},
        {"structure": "loop", "block": 8192, "warps": 16, "evict": "hints"},
        {"structure": "loop", "block": 4096, "warps": 4, "stages": 3},
    ]
    if not shape.online:
        return twice
    once: list[dict[str, Any]] = [
        {"structure": "online", "block": 8192, "warps": 4},
        {"structure": "online", "block": 8192, "warps": 8, "stages": 2},
    ]
    return [*once, twice[0], twice[2], {"structure": "online", "block": 16384, "warps": 16}]


def _pointwise_openings(shape: _Shape, guess: TritonSchedule) -> list[dict[str, Any]]:
    if shape.tiled:
        return [
            {"rows": 32, "block": 64},
            {"rows": 64, "block": 64, "warps": 8},
            {"rows": 32, "block": 32},
            {"rows": 16, "block": 128},
            {"rows": 64, "block": 32},
        ]
    block, rows = guess.block, guess.rows
    wide = {"rows": 2 * rows} if shape.rows > 1 else {"block": 2 * block}
    narrow = {"rows": max(1, rows // 2)} if rows > 1 else {"block": max(16, block // 2)}
    return [{}, wide, {**wide, "warps": 8}, {**narrow, "evict": "hints"}, {**wide, "persistent": 8, "stages": 2}]
