"""One loop nest as C++ lines: rows in parallel, and inside them one loop over the columns for each pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autokernel.generate.affine import Var
from autokernel.generate.expression import Box, Checked, Expr, Op, Pick, Reduce, children, walk
from autokernel.generate.layout import Loops, loops
from autokernel.generate.loop_cpp import LoopWriter, Piece, Work, stored
from autokernel.generate.plan import Nest, Store
from autokernel.generate.schedule import Schedule
from autokernel.generate.scope_cpp import Row, Scope
from autokernel.generate.text_cpp import Names, accumulator_type, join, strip

LINE_LIMIT = 16384  # elements of a row that may be kept on the stack
_FLOATS = {"float": "float32", "double": "float64"}


class NestWriter:
    def __init__(
        self, nest: Nest, schedule: Schedule, symbols: Mapping[str, str], dtypes: Mapping[str, str], names: Names
    ) -> None:
        self.nest, self.schedule, self.symbols, self.dtypes = nest, schedule, symbols, dtypes
        self.names = Names(names)
        self.loops: Loops = loops(nest, schedule)
        expressions = nest.expressions()
        self.checks = any(isinstance(expr, Checked) for expr in expressions)
        self.outputs = {store.buffer.name for store in nest.stores}
        self.uses = Counter(id(child) for expr in expressions for child in children(expr))
        self.uses.update(id(expr) for store in nest.stores for _, expr in store.parts)
        self.uses.update(id(expr) for reduction in nest.reductions for _, expr in reduction.parts)
        self.row_names = self._row_names()
        self.last = max((store.level for store in nest.stores), default=0)
        self.arrays: list[str] = []
        # id of an expression → the array, or "=output" that is its value anyway, or "+output" used until its last pass
        self.kept: dict[int, str] = {}
        self.ready: set[int] = set()  # kept values that a finished pass has written
        self.streamed: dict[str, str] = {}  # output → the array its row is finished in
        self._choose_streamed()
        self._choose_kept()

    def varies(self, expr: Expr, over: Iterable[Var]) -> bool:
        return bool(self.loops.loops_of(expr.variables) & set(over))

    # --- the nest

    def write(self) -> list[str]:
        rows, flight = self.loops.rows, self._rows_in_flight()
        contexts = [self._context(k, flight) for k in range(flight)]
        body: list[str] = []
        for level in range(self.last + 1):
            body += self._pass(level, contexts)
            self.ready |= {id(expr) for work in self._work(level) for expr in unconditional(work.expr)} & set(self.kept)
        body += self._finish(contexts)
        body = [*(line.replace("@", context.suffix) for line in self.arrays for context in contexts), *body]
        if not rows:
            return self._without_rows(body)
        lines = [self._parallel(len(rows))] if self._parallel(len(rows)) else []
        for depth, var in enumerate(rows):
            name = self.row_names[var]
            step = f"{name} += {flight}" if var == rows[-1] and flight > 1 else f"++{name}"
            lines.append("    " * depth + f"for (int64_t {name} = 0; {name} < {var.extent}; {step}) {{")
        lines += ["    " * len(rows) + line for line in body]
        return lines + ["    " * depth + "}" for depth in reversed(range(len(rows)))]

    def _without_rows(self, body: list[str]) -> list[str]:
        """A pointwise nest over flat memory shares its one loop among the threads; one single row stays on one."""
        if self.nest.kind == "pointwise" and self.loops.columns:
            parallel = self._parallel(1, checks=False).replace("parallel for", "parallel for simd")
            return [line.replace("#pragma omp simd", parallel or "#pragma omp simd", 1) for line in body]
        return ["{", *("    " + line for line in body), "}"]

    def _parallel(self, depth: int, checks: bool = True) -> str:
        if self.schedule.threads == "one":
            return ""
        dealt = (
            f"schedule(dynamic, {self.schedule.chunk})"
            if self.schedule.chunk and self.loops.rows
            else "schedule(static)"
        )
        collapse = f" collapse({depth})" if depth > 1 else ""
        flag = " reduction(| : bad)" if self.checks and checks else ""
        return f"#pragma omp parallel for{collapse} num_threads(threads) {dealt}{flag}"

    def _row_names(self) -> dict[Var, str]:
        rows = self.loops.rows
        wishes = ["row"] if len(rows) == 1 else [f"row{k}" for k in range(len(rows))]
        return dict(zip(rows, wishes, strict=True))

    def _rows_in_flight(self) -> int:
        flight = self.schedule.rows
        return flight if self.loops.rows and self.loops.rows[-1].extent % flight == 0 else 1

    def _context(self, k: int, flight: int) -> Row:
        text = dict(self.row_names)
        if k:
            text[self.loops.rows[-1]] = f"({self.row_names[self.loops.rows[-1]]} + {k})"
        return Row(k, f"_{k}" if flight > 1 else "", text, self.names)

    # --- what happens in which pass

    def _work(self, level: int) -> list[Work]:
        made = [Work(expr, box, r) for r in self.nest.reductions if r.level == level + 1 for box, expr in r.parts]
        stores = [s for s in self.nest.stores if s.level == level and not s.row_only]
        return made + [Work(expr, box, store) for store in stores for box, expr in store.parts]

    def _over(self, target: Reduce | Store) -> tuple[Var, ...]:
        return self.loops.over[target.over] if isinstance(target, Reduce) else self.loops.columns

    def _width(self) -> int:
        return math.prod(v.extent for v in self.loops.columns)

    # --- values kept from pass to pass

    def _choose_kept(self) -> None:
        if self.schedule.keep == "recompute" or self._width() > LINE_LIMIT:
            return
        scratch = [s for s in self.nest.stores if not s.row_only and s.level == self.last]
        computed: set[int] = set()
        for level in range(self.last + 1):
            for work in self._work(level):
                if self._over(work.target) == self.loops.columns:
                    self._keep_under(work.expr, level, computed, scratch)
            computed |= self._computed(level)

    def _computed(self, level: int) -> set[int]:
        """Values that this level's pass computes at every column, whatever the segments."""
        found: set[int] = set()
        targets = {id(work.target): work.target for work in self._work(level)}
        for target in targets.values():
            if self._over(target) == self.loops.columns:
                found |= set.intersection(*({id(e) for e in unconditional(expr)} for _, expr in target.parts))
        return found

    def _keep_under(self, expr: Expr, level: int, computed: set[int], scratch: list[Store]) -> None:
        """Mark the largest parts of an expression that an earlier pass has computed."""
        worth = isinstance(expr, (Op, Pick)) and self.varies(expr, self.loops.columns)
        if id(expr) in self.kept:
            return
        if worth and id(expr) in computed:
            stored = [
                s
                for s in self.nest.stores
                if len(s.parts) == 1 and s.parts[0][1] is expr and not s.row_only and s.level < level
            ]
            same_type = [s for s in stored if s.buffer.dtype == _FLOATS.get(expr.ctype)]
            # The store overwrites what is kept there: no other may need it.
            readers = {id(w.target) for w in self._work(self.last) if any(e is expr for e in walk(w.expr))}
            fitting = [s for s in scratch if s.buffer.dtype == _FLOATS.get(expr.ctype) and readers == {id(s)}]
            fitting = fitting if level == self.last else []
            if same_type:
                self.kept[id(expr)] = f"={same_type[0].buffer.name}"
            elif self.schedule.keep == "output" and fitting:
                scratch.remove(fitting[0])
                self.kept[id(expr)] = f"+{fitting[0].buffer.name}"
            else:
                name = self.names.fresh(f"{expr.name}_row")
                self.arrays.append(f"alignas(64) {expr.ctype} {name}@[{self._width()}];")
                self.kept[id(expr)] = name
            return
        if not isinstance(expr, Pick):
            for child in children(expr):
                self._keep_under(child, level, computed, scratch)

    def _choose_streamed(self) -> None:
        if self.schedule.stores != "streaming" or len(self.loops.columns) != 1 or not self.loops.rows:
            return
        for store in self.nest.stores:
            contiguous = self.loops.resolve(store.offset).coefficient(self.loops.columns[0]) == 1
            if contiguous and not store.row_only and store.buffer.dtype == "float32" and self._width() <= LINE_LIMIT:
                name = self.names.fresh(f"{self.symbols[store.buffer.name]}_line")
                self.arrays.append(f"alignas(64) float {name}@[{self._width()}];")
                self.streamed[store.buffer.name] = name

    # --- passes

    def _pass(self, level: int, contexts: Sequence[Row]) -> list[str]:
        """Every loop over columns at this level, each after the row's statements that it needs."""
        groups: dict[tuple[tuple[Var, ...], Box], list[Work]] = {}
        for work in self._work(level):
            groups.setdefault((self._over(work.target), work.box), []).append(work)
        together = self.schedule.segments == "together"
        lines: list[str] = []
        for over, pieces in _jobs(groups, together):
            lines += LoopWriter(self, over, pieces, contexts).write()
        for reduction in (r for r in self.nest.reductions if r.level == level + 1):
            for context in contexts:
                lines += self._combine(reduction, context)
        return lines

    def _combine(self, reduction: Reduce, context: Row) -> list[str]:
        """One value from the accumulators of a reduction, pair by pair."""
        totals = context.accumulators[id(reduction)]
        if len(totals) == 1:
            context.values[id(reduction)] = totals[0]
            return []
        lines: list[str] = []
        waiting = list(totals)
        while len(waiting) > 1:
            left, right, *waiting = waiting
            name = context.names.fresh(reduction.name + context.suffix)
            lines.append(f"const {accumulator_type(reduction)} {name} = {strip(join(reduction, left, right))};")
            waiting.append(name)
        context.values[id(reduction)] = waiting[0]
        return lines

    def _finish(self, contexts: Sequence[Row]) -> list[str]:
        """Values of which a row has one, and rows that go past the caches."""
        lines: list[str] = []
        for context in contexts:
            scope = Scope(self, context)
            for store in (s for s in self.nest.stores if s.row_only):
                value = strip(scope.render(store.parts[0][1], root=True))
                place = scope.place(store)
                lines += [*context.take(), f"{place} = {stored(value, store)};"]
                scope = Scope(self, context)
            for store in (s for s in self.nest.stores if s.buffer.name in self.streamed):
                offset = self.loops.resolve(store.offset).without(self.loops.columns)
                pointer = scope.pointer(store.buffer.name, offset)
                lines += context.take()
                lines.append(
                    f"stream_row({pointer}, {self.streamed[store.buffer.name]}{context.suffix}, {self._width()});"
                )
                scope = Scope(self, context)
        return lines


def unconditional(root: Expr) -> list[Expr]:
    """Every expression under `root` that is evaluated whatever the index, each once."""
    seen: dict[int, Expr] = {}
    waiting = [root]
    while waiting:
        expr = waiting.pop()
        if id(expr) not in seen:
            seen[id(expr)] = expr
            waiting += () if isinstance(expr, Pick) else children(expr)
    return list(seen.values())


def _jobs(
    groups: Mapping[tuple[tuple[Var, ...], Box], list[Work]], together: bool
) -> list[tuple[tuple[Var, ...], list[Piece]]]:
    """A loop for each group; with `together`, one loop for segments of equal length that only write."""
    jobs: list[tuple[tuple[Var, ...], list[Piece]]] = []
    place: dict[tuple[tuple[Var, ...], int], int] = {}
    for (over, box), works in groups.items():
        first, end = dict(box).get(over[-1], (0, over[-1].extent)) if over else (0, 1)
        key = (over, end - first)
        if together and key in place and not any(isinstance(work.target, Reduce) for work in works):
            jobs[place[key]][1].append((box, works))
        else:
            place[key] = len(jobs)
            jobs.append((over, [(box, works)]))
    return jobs
