"""Loop nests made ready for a schedule: loops in memory order, neighbours merged, flat loops cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass

from autokernel.generate.affine import Affine, Var
from autokernel.generate.expression import Load
from autokernel.generate.plan import Nest
from autokernel.generate.schedule import Schedule


@dataclass(frozen=True)
class Loops:
    """`rows` are independent and run in parallel; `columns` run inside, the last one in vectors.

    `index` gives every variable of the expressions in terms of the loops that are left.
    """

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    index: dict[Var, Affine]
    over: dict[tuple[Var, ...], tuple[Var, ...]]  # of each reduction: the loops left of what it runs over

    def resolve(self, affine: Affine) -> Affine:
        return affine.substitute(self.index)

    def loops_of(self, variables: frozenset[Var]) -> frozenset[Var]:
        return frozenset(v for old in variables for v in self.index.get(old, Affine.var(old)).variables)


def loops(nest: Nest, schedule: Schedule) -> Loops:
    """The loops of a nest under a schedule. Deterministic; never changes what is computed."""
    rows = _sorted(nest, nest.rows, schedule)
    columns = _sorted(nest, nest.columns, schedule)
    index: dict[Var, Affine] = {}
    fixed = nest.boxed()
    rows = _merge(nest, rows, index, fixed)
    over: dict[tuple[Var, ...], tuple[Var, ...]] = {}
    merged_columns = _merge(nest, columns, index, fixed)
    for reduction in nest.reductions:
        if set(reduction.over) == set(nest.columns):
            over[reduction.over] = merged_columns
        elif reduction.over not in over:
            over[reduction.over] = _merge(nest, reduction.over, index, fixed)
    columns = merged_columns
    if not nest.reductions:
        rows, columns = _inner(nest, rows, index, schedule)
    return Loops(rows, columns, index, over)


def _sorted(nest: Nest, variables: tuple[Var, ...], schedule: Schedule) -> tuple[Var, ...]:
    """Outer to inner by how far a step moves in memory; a loop that is cut into segments stays innermost."""
    main = max(nest.stores, key=lambda store: store.buffer.elements).offset
    if schedule.order == "loads" and not nest.reductions:
        loads = [expr for expr in nest.expressions() if isinstance(expr, Load)]
        main = max(loads, key=lambda load: len(load.variables)).offset if loads else main
    boxed = nest.boxed()

    def place(var: Var) -> tuple[bool, int]:
        return var in boxed, -abs(main.coefficient(var)) if main.coefficient(var) else -(2**60)

    return tuple(sorted(variables, key=place))


def _merge(nest: Nest, variables: tuple[Var, ...], index: dict[Var, Affine], fixed: set[Var]) -> tuple[Var, ...]:
    """Two neighbouring loops are one where every index moves evenly across the pair."""
    left = list(variables)
    place = len(left) - 2
    while place >= 0:
        outer, inner = left[place], left[place + 1]
        known = [affine.substitute(index) for affine in nest.indices()]
        even = all(affine.coefficient(outer) == inner.extent * affine.coefficient(inner) for affine in known)
        if even and outer not in fixed and inner not in fixed:
            both = Var(f"{outer.name}+{inner.name}", outer.extent * inner.extent)
            change = {outer: Affine(), inner: Affine.var(both)}
            for var in list(index):
                index[var] = index[var].substitute(change)
            index.update(change)
            left[place : place + 2] = [both]
        place -= 1
        place = min(place, len(left) - 2)
    return tuple(left)


def _inner(
    nest: Nest, rows: tuple[Var, ...], index: dict[Var, Affine], schedule: Schedule
) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """A pointwise nest's rows and columns: the last loop is the inner one; a flat or tiled one is cut first."""
    if not rows:
        return (), ()
    if schedule.order == "tiles" and len(rows) > 1:
        return _tiled(nest, rows, index)
    *outer, last = rows
    if (
        schedule.block
        and last.extent % schedule.block == 0
        and last.extent > schedule.block
        and last not in nest.boxed()
    ):
        piece, inner = Var(f"{last.name}/", last.extent // schedule.block), Var(f"{last.name}%", schedule.block)
        _replace(index, last, Affine.of({piece: schedule.block, inner: 1}))
        return (*outer, piece), (inner,)
    return tuple(outer), (last,)


TILE = 16


def _tiled(nest: Nest, rows: tuple[Var, ...], index: dict[Var, Affine]) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """The inner loop of the stores and that of the loads, both cut, so that a tile's lines stay in the cache."""
    reading = transposed(nest, rows, index)
    last = rows[-1]
    if reading is None or reading.extent % TILE or last.extent % TILE or nest.boxed() & {reading, last}:
        return rows[:-1], (last,)
    cut = {}
    for var in (reading, last):
        cut[var] = (Var(f"{var.name}/", var.extent // TILE), Var(f"{var.name}%", TILE))
        _replace(index, var, Affine.of({cut[var][0]: TILE, cut[var][1]: 1}))
    outer = tuple(cut[v][0] if v in cut else v for v in rows)
    return outer, (cut[reading][1], cut[last][1])


def transposed(nest: Nest, rows: tuple[Var, ...], index: dict[Var, Affine]) -> Var | None:
    """The loop along which a load is contiguous, where the innermost loop isn't."""
    for expr in nest.expressions():
        if isinstance(expr, Load):
            offset = expr.offset.substitute(index)
            if abs(offset.coefficient(rows[-1])) > 1:
                for var in rows[:-1]:
                    if abs(offset.coefficient(var)) == 1:
                        return var
    return None


def _replace(index: dict[Var, Affine], var: Var, by: Affine) -> None:
    for old in list(index):
        index[old] = index[old].substitute({var: by})
    index[var] = by
