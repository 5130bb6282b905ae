"""One loop nest as a Triton kernel: a program takes some rows, and their columns in tiles, pass by pass."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Var
from autokernel.generate.expression import Box, Expr, Reduce, children
from autokernel.generate.grid_triton import LARGEST, Grid, grid_of, power
from autokernel.generate.online_triton import Online, online
from autokernel.generate.plan import Nest, Store
from autokernel.generate.schedule_triton import TritonSchedule
from autokernel.generate.scope_triton import At, Scope, Tile
from autokernel.generate.text_triton import Names, folded, joined, literal, neutral, strip, value_type

_CONVERTED = {"bfloat16": "bfloat16", "float16": "float16", "uint8": "uint8"}
Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What a pass does at every column of a box: add to a reduction, or write a store."""

    expr: Expr
    box: Box
    target: Reduce | Store


class NestWriter:
    def __init__(
        self,
        nest: Nest,
        schedule: TritonSchedule,
        pointers: Mapping[str, str],
        dtypes: Mapping[str, str],
        names: Names,
    ) -> None:
        self.nest, self.schedule, self.names = nest, schedule, names
        self.grid: Grid = grid_of(nest, schedule)
        self.loops = self.grid.loops
        self.flat = self.grid.rows == 1  # tiles have no row dim
        self.axis = "0" if self.flat else "1, keep_dims=True"
        self.last = max((store.level for store in nest.stores), default=0)
        self.tiles: dict[tuple[Lengths, int], Tile] = {}
        plain = self.flat and self.grid.column_tiles == 1 and not self.grid.wide and bool(self.loops.rows)
        self.counter = "row" if plain else "tile"  # what a program's number is called
        row_text = self._row_names()
        uses = Counter(id(child) for expr in nest.expressions() for child in children(expr))
        uses.update(id(expr) for store in nest.stores for _, expr in store.parts)
        uses.update(id(expr) for reduction in nest.reductions for _, expr in reduction.parts)
        masked = self.grid.count % self.grid.rows != 0
        self.scope = Scope(
            self.loops, schedule, pointers, dtypes, uses, names, row_text, "row_inside" if masked else ""
        )
        self.dtypes = dtypes

    # --- the program

    def write(self) -> list[str]:
        """The lines of the function's body."""
        self.scope.row += self._rows()
        together = online(self.nest) if self.schedule.structure == "online" else None
        if together is not None and not self._long(self._lengths(together.largest)):
            together = None
        for level in range(self.last + 1):
            if together is None or level > 1:
                self._pass(level)
            elif level == 0:
                self._online(together)
        for store in (s for s in self.nest.stores if s.row_only):
            self._store(store, self.scope.render(store.parts[0][1], None, root=True), store.parts[0][1], None)
        if not self.schedule.persistent or self.grid.tiles == 1:
            used = any(re.search(rf"\b{self.counter}\b", line) for line in self.scope.row)
            return [*self.scope.once, *([f"{self.counter} = tl.program_id(0)"] if used else []), *self.scope.row]
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 and not self._looped() else ""
        head = f"for {self.counter} in tl.range(tl.program_id(0), {self.grid.tiles}, tl.num_programs(0){stages}):"
        return [*self.scope.once, head, *("    " + line for line in self.scope.row)]

    def _looped(self) -> bool:
        return any(tile.looped for tile in self.tiles.values())

    def _row_names(self) -> dict[Var, str]:
        rows = self.loops.rows
        wishes = ["row"] if len(rows) == 1 else [self.names.fresh(f"row{k}") for k in range(len(rows))]
        return dict(zip(rows, wishes, strict=True))

    def _rows(self) -> list[str]:
        """Which rows the tile has: `row`, and its parts where the rows are several loops."""
        rows, grid, lines = self.loops.rows, self.grid, []
        if not rows:
            return []
        tile = "tile"
        if grid.column_tiles > 1:
            tile = f"tile // {grid.column_tiles}"
        if grid.rows > 1:
            scaled = f"{tile} * {grid.rows}" if "//" not in tile else f"({tile}) * {grid.rows}"
            tile = f"{scaled} + tl.arange(0, {grid.rows})[:, None]"
        if self.counter == "tile":
            lines.append(f"row = ({tile}).to(tl.int64)" if grid.wide else f"row = {tile}")
        if grid.count % grid.rows:
            lines.append(f"row_inside = row < {grid.count}")
        inner = 1
        parts = []
        for k in reversed(range(len(rows))):
            if len(rows) == 1:
                break
            text = f"row // {inner}" if inner > 1 else "row"
            parts.append(f"row{k} = {text}" + (f" % {rows[k].extent}" if k else ""))
            inner *= rows[k].extent
        return lines + parts[::-1]

    # --- tiles

    def _tile(self, lengths: Lengths, first: int, size: int, looped: bool) -> Tile:
        """The tile of `size` positions from `first` on; declared where it is first used."""
        key = (lengths, first)
        if key in self.tiles and not looped:
            return self.tiles[key]
        total, own = math.prod(lengths), True
        number = len(self.tiles) + 1
        name = "column" if number == 1 else f"column_{number}"
        place = f"tl.arange(0, {size})" + ("" if self.flat else "[None, :]")
        start = str(first) if first else ""
        if looped:
            start = "start"
        elif self.grid.column_tiles > 1:
            turn, own = (f"tile % {self.grid.column_tiles}" if self.loops.rows else "tile"), False
            start = f"({turn}).to(tl.int64) * {size}" if self.grid.wide else f"{turn} * {size}"
        lines = [f"{name} = {start} + {place}" if start else f"{name} = {place}"]
        covered = total % size == 0 if looped or self.grid.column_tiles > 1 else first + size <= total
        mask = "" if covered else ("inside" if number == 1 else f"inside_{number}")
        if mask:
            lines.append(f"{mask} = {name} < {total}")
        columns = [name]
        if len(lengths) > 1:
            columns = [f"{name}_{k}" for k in range(len(lengths))]
            inner = 1
            for k in reversed(range(len(lengths))):
                text = f"{name} // {inner}" if inner > 1 else name
                lines.append(f"{columns[k]} = {text}" + (f" % {lengths[k]}" if k else ""))
                inner *= lengths[k]
        tile = Tile(lengths, tuple(columns), mask, looped, own)
        self.tiles[key if not looped else (lengths, -number)] = tile
        target = self.scope.loop if looped else self.scope.once if own else self.scope.row
        assert target is not None
        target += lines
        return tile

    def _pieces(self, lengths: Lengths) -> list[tuple[int, int]]:
        """(first position, size) of the tiles that a row of these lengths is kept in."""
        total = math.prod(lengths)
        if self.grid.block:
            return [(0, min(self.grid.block, power(total)))] if self.grid.column_tiles == 1 else [(0, self.grid.block)]
        if self.schedule.structure != "split" or power(total) == total:
            return [(0, power(total))]
        large = power(total) // 2
        rest = power(total - large)
        return [(0, large), (large, rest)] if large + rest < power(total) else [(0, power(total))]

    # --- passes

    def _work(self, level: int) -> list[Work]:
        made = [Work(expr, box, r) for r in self.nest.reductions if r.level == level + 1 for box, expr in r.parts]
        stores = [s for s in self.nest.stores if s.level == level and not s.row_only]
        return made + [Work(expr, box, store) for store in stores for box, expr in store.parts]

    def _lengths(self, target: Reduce | Store) -> Lengths:
        return tuple(v.extent for v in self._over(target))

    def _over(self, target: Reduce | Store) -> tuple[Var, ...]:
        return self.loops.over[target.over] if isinstance(target, Reduce) else self.loops.columns

    def _pass(self, level: int) -> None:
        """Every reduction and store of this level, grouped by the lengths their columns run through."""
        self.scope.hint = "evict_first" if level == self.last or not self._in_loop(level) else "evict_last"
        groups: dict[Lengths, list[tuple[Work, tuple[Var, ...], dict[Var, int]]]] = {}
        for work in self._work(level):
            over = self._over(work.target)
            ranges = dict(work.box)
            if any(v not in over[-1:] for v in ranges):
                raise NotGenerated(what="this region", detail="a loop is cut that is not the innermost")
            bounds = [ranges.get(v, (0, v.extent)) for v in over]
            first = {v: begin for v, (begin, _) in zip(over, bounds, strict=True)}
            groups.setdefault(tuple(end - begin for begin, end in bounds), []).append((work, over, first))
        totals: dict[int, list[str]] = {}
        for lengths, works in groups.items():
            if not lengths:
                self._single(works, totals)
            elif self._long(lengths):
                self._loop(lengths, works, totals)
            else:
                for start, size in self._pieces(lengths):
                    tile = self._tile(lengths, start, size, False)
                    for work, over, begin in works:
                        self._at(work, At(tile, over, begin), totals)
        for reduction in (r for r in self.nest.reductions if r.level == level + 1):
            self._finish(reduction, totals[id(reduction)])

    def _finish(self, reduction: Reduce, parts: list[str]) -> None:
        value = parts[0]
        for other in parts[1:]:
            value = joined(reduction, value, other)
        if not value.isidentifier():
            name = self.names.fresh(reduction.name)
            self.scope.row.append(f"{name} = {strip(value)}")
            value = name
        self.scope.values[id(reduction), None, ()] = f"({value} != 0)" if reduction.ctype == "bool" else value

    def _in_loop(self, level: int) -> bool:
        return any(self._long(self._lengths(work.target)) for work in self._work(level))

    def _long(self, lengths: Lengths) -> bool:
        if self.grid.block or not lengths:
            return False
        total = power(math.prod(lengths))  # as a tile has
        if self.schedule.structure in ("loop", "online"):
            return total > self._block(total)
        return total > LARGEST

    def _block(self, total: int) -> int:
        """Columns of a turn of a loop over `total` of them."""
        return self.schedule.block or max(1, min(4096, power(total) // 2))

    def _single(self, works: list[tuple[Work, tuple[Var, ...], dict[Var, int]]], totals: dict[int, list[str]]) -> None:
        """Rows of one column."""
        for work, _, _ in works:
            value = self.scope.render(work.expr, None, root=True)
            if isinstance(work.target, Reduce):
                cast = f"{value}.to(tl.int32)" if work.target.ctype == "bool" else value
                totals.setdefault(id(work.target), []).append(cast)
            else:
                self._store(work.target, value, work.expr, None)

    def _at(self, work: Work, at: At, totals: dict[int, list[str]]) -> None:
        value = self.scope.render(work.expr, at, root=True)
        if isinstance(work.target, Store):
            self._store(work.target, value, work.expr, at)
            return
        reduction = work.target
        value = self._prepared(reduction, work.expr, value, at)
        name = self.names.fresh(reduction.name)
        self.scope.row.append(f"{name} = {folded(reduction, strip(value), self.axis)}")
        totals.setdefault(id(reduction), []).append(name)

    def _prepared(self, reduction: Reduce, expr: Expr, value: str, at: At) -> str:
        """A value of a tile, of the type and shape that is reduced, and neutral where there is no column."""
        if reduction.ctype == "bool":
            value = f"{value}.to(tl.int32)"
        mask, by_column = at.tile.mask, self.scope.varies(expr.variables, at)[1]
        if mask:
            return f"tl.where({mask}, {strip(value)}, {neutral(reduction)})"
        return value if by_column else f"tl.where({at.tile.columns[0]} >= 0, {strip(value)}, {neutral(reduction)})"

    def _store(self, store: Store, value: str, expr: Expr, at: At | None) -> None:
        dtype = _CONVERTED.get(store.buffer.dtype)
        if dtype and value != literal_of(expr):
            value = f"{value}.to(tl.{dtype})"
        self.scope.store(store.buffer.name, store.offset, value, at)

    # --- loops over blocks of columns

    def _loop(
        self,
        lengths: Lengths,
        works: list[tuple[Work, tuple[Var, ...], dict[Var, int]]],
        totals: dict[int, list[str]],
    ) -> None:
        total = math.prod(lengths)
        block = self._block(total)
        declared: list[str] = []
        ended: list[str] = []
        scope = self.scope
        scope.loop = []
        tile = self._tile(lengths, 0, block, True)
        shape = f"[{block}]" if self.flat else f"[{self.grid.rows}, {block}]"
        for work, over, first in works:
            at = At(tile, over, first)
            value = scope.render(work.expr, at, root=True)
            if isinstance(work.target, Store):
                self._store(work.target, value, work.expr, at)
                continue
            reduction = work.target
            lanes = self.names.fresh(f"{reduction.name}_lanes")
            name = self.names.fresh(reduction.name)
            declared.append(f"{lanes} = tl.full({shape}, {neutral(reduction)}, {value_type(reduction)})")
            made = strip(self._prepared(reduction, work.expr, value, at))
            scope.loop.append(f"{lanes} = {joined(reduction, lanes, made)}")
            ended.append(f"{name} = {folded(reduction, lanes, self.axis)}")
            totals.setdefault(id(reduction), []).append(name)
        body, scope.loop = scope.loop, None
        scope.row += [*declared, self._blocks(total, block), *("    " + line for line in body), *ended]

    def _blocks(self, total: int, block: int) -> str:
        steps = f"0, {total}, {block}"
        if self.schedule.stages == 1:
            return f"for start in range({steps}):"
        return f"for start in tl.range({steps}, num_stages={self.schedule.stages}):"

    def _online(self, found: Online) -> None:
        """Maximum and rescaled sum, block by block; see online_triton."""
        scope, over, lengths = self.scope, self._over(found.largest), self._lengths(found.largest)
        block = self._block(math.prod(lengths))
        scope.loop, scope.running, scope.hint = [], True, "evict_last" if self.last > 1 else "evict_first"
        tile = self._tile(lengths, 0, block, True)
        at = At(tile, over, {})
        largest, total = self.names.fresh(found.largest.name), self.names.fresh(found.total.name)
        before, now = self.names.fresh(f"{largest}_before"), self.names.fresh(f"{largest}_now")
        value = scope.named(found.value, at)
        held = self._prepared(found.largest, found.value, value, at)
        scope.loop.append(f"{largest} = nan_max({largest}, {folded(found.largest, strip(held), self.axis)})")
        scope.values[id(found.largest), None, ()] = largest
        shift = scope.named(found.shift, None)
        power, scale = scope.function("exp"), ""
        if self.schedule.exp == "folded":
            power, scale = "tl.exp2(", " * 1.4426950408889634"
        term = f"{power}{f'({value} - {now})' if scale else f'{value} - {now}'}{scale})"
        change = f"{power}{f'({before} - {now})' if scale else f'{before} - {now}'}{scale})"
        added = folded(found.total, strip(self._prepared(found.total, found.value, term, at)), self.axis)
        scope.loop += [
            f'{now} = tl.where({shift} == float("-inf"), 0.0, {shift})  # nothing but -inf so far',
            f"{total} = {total} * tl.where({total} == 0.0, 0.0, {change}) + {added}",
            f"{before} = {now}",
        ]
        shape = "()" if self.flat else f"[{self.grid.rows}, 1]"
        starts = {largest: 'float("-inf")', total: "0.0", before: "0.0"}
        declared = [f"{name} = tl.full({shape}, {start}, tl.float32)" for name, start in starts.items()]
        body, scope.loop = scope.loop, None
        scope.settle()
        scope.row += [*declared, self._blocks(math.prod(lengths), block), *("    " + line for line in body)]
        scope.values[id(found.largest), None, ()] = largest
        last = scope.named(found.shift, None)
        scope.row.append(f'{total} = tl.where({last} == float("-inf"), float("nan"), {total})')
        scope.values[id(found.total), None, ()] = total


def literal_of(expr: Expr) -> str | None:
    from autokernel.generate.expression import Const

    return literal(expr) if isinstance(expr, Const) else None
