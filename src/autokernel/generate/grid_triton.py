"""How a nest is laid over programs: rows and columns of a tile, and which tile a program works on."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from autokernel.generate.affine import Affine, Var
from autokernel.generate.layout import Loops, loops, transposed
from autokernel.generate.plan import Nest
from autokernel.generate.schedule import Schedule
from autokernel.generate.schedule_triton import TritonSchedule

POINTWISE_BLOCK = 1024
LARGEST = 65536  # elements of a program's tile: beyond, registers spill whatever the number of warps
_INT32 = 2**31 - 1


def power(number: int) -> int:
    """The next power of two."""
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True)
class Grid:
    """`rows` rows a tile; pointwise nests also cut the columns into tiles of `block`."""

    loops: Loops
    count: int  # of rows
    rows: int
    width: int  # columns that tiles are counted over: the longest segment of a pointwise nest; else 1
    block: int  # columns of a pointwise tile; 0 where a program sees whole rows
    wide: bool  # offsets need 64 bits

    @property
    def column_tiles(self) -> int:
        return -(-self.width // self.block) if self.block else 1

    @property
    def tiles(self) -> int:
        return -(-self.count // self.rows) * self.column_tiles


def grid_of(nest: Nest, schedule: TritonSchedule) -> Grid:
    found = _loops(nest, schedule)
    count = math.prod(v.extent for v in found.rows)
    rows = min(schedule.rows, power(count))
    wide = _reach(nest, found) > _INT32
    if nest.reductions or not found.columns:
        width = max([math.prod(v.extent for v in found.columns), *(_product(over) for over in found.over.values())])
        if schedule.structure in ("whole", "split"):
            rows = max(1, min(rows, LARGEST // power(width)))
        return Grid(found, count, rows, 1, 0, wide)
    width = max(segment_length(box, found.columns[-1]) for store in nest.stores for box, _ in store.parts)
    block = min(schedule.block or POINTWISE_BLOCK, power(width))
    rows = max(1, min(rows, LARGEST // block))
    return Grid(found, count, rows, width, block, wide)


def segment_length(box: tuple[tuple[Var, tuple[int, int]], ...], var: Var) -> int:
    first, end = dict(box).get(var, (0, var.extent))
    return end - first


def _product(variables: tuple[Var, ...]) -> int:
    return math.prod(v.extent for v in variables)


def _loops(nest: Nest, schedule: TritonSchedule) -> Loops:
    """The C++ loops; for tiles, the row loop that a load is contiguous along is the innermost of the rows."""
    found = loops(nest, Schedule(order="loads" if schedule.order == "loads" else "stores"))
    if schedule.order == "tiles" and not nest.reductions and found.columns:
        across = transposed(nest, (*found.rows, *found.columns), found.index)
        if across is not None:
            rows = (*(v for v in found.rows if v != across), across)
            return dataclasses.replace(found, rows=rows)
    return found


def _reach(nest: Nest, found: Loops) -> int:
    """The largest index that is computed."""
    indices: list[Affine] = [found.resolve(affine) for affine in nest.indices()]
    count = math.prod(v.extent for v in (*found.rows, *found.columns))
    return max([abs(end) for affine in indices for end in affine.range({})] + [count])
