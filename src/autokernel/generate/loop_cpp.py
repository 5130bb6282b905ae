"""One loop over columns as C++ lines, and how reductions accumulate in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Var
from autokernel.generate.expression import Box, Expr, Reduce
from autokernel.generate.plan import Store
from autokernel.generate.scope_cpp import Row, Scope
from autokernel.generate.text_cpp import accumulate, accumulator_type, initial, is_floating, strip

if TYPE_CHECKING:
    from autokernel.generate.nest_cpp import NestWriter

SHORT = 32  # columns below which a loop isn't cut into parts: no whole number of vectors would be left
LONG = 4096  # columns beyond which a sum is made block by block, so that its rounding error stays that of a short one
LONGEST_LANE = 1024  # values that one lane may add up, for the same reason


@dataclass(frozen=True)
class Work:
    """What a pass does at every column of a box: add to a reduction, or write a store."""

    expr: Expr
    box: Box
    target: Reduce | Store


Piece = tuple[Box, list[Work]]


class LoopWriter:
    """One loop over columns: some work, at one box of columns or several of equal length, for every row in flight."""

    def __init__(self, nest: NestWriter, over: tuple[Var, ...], pieces: list[Piece], contexts: Sequence[Row]) -> None:
        self.nest, self.over, self.pieces, self.contexts = nest, over, pieces, contexts
        self.inner = over[-1] if over else None
        works = [work for _, group in pieces for work in group]
        reduces = any(isinstance(work.target, Reduce) for work in works)
        first, end = self._range(pieces[0][0])
        wanted = nest.schedule.parts if reduces else nest.schedule.streams
        even = (end - first) % wanted == 0 and (end - first) // wanted >= SHORT
        self.lanes = self._lanes(works, end - first) if reduces else 0
        self.parts = wanted if even and not self.lanes else 1
        self.length = (end - first) // self.parts
        sums = any(isinstance(w.target, Reduce) and w.target.kind == "sum" and is_floating(w.target) for w in works)
        self.block = _block(self.length) if sums and not self.lanes else 0
        self.column = {v: f"column{k}" if len(over) > 1 else "column" for k, v in enumerate(over)}
        self.declared: list[str] = []
        self.folded: list[str] = []
        self.clauses: dict[str, list[str]] = {}
        self.block_sums: list[tuple[str, str]] = []  # (declaration, what adds it up)

    def _lanes(self, works: list[Work], extent: int) -> int:
        """Accumulators side by side in an array, if that many fit these reductions and this row; else 0."""
        lanes = self.nest.schedule.lanes
        reductions = [work.target for work in works if isinstance(work.target, Reduce)]
        fits = lanes and 2 * lanes <= extent <= LONGEST_LANE * lanes and len(self.pieces) == 1
        plain = all(is_floating(r) and r.kind in ("sum", "max", "min") and len(r.parts) == 1 for r in reductions)
        return lanes if fits and plain else 0

    def _range(self, box: Box) -> tuple[int, int]:
        """The box's part of the innermost loop. Raises `NotGenerated` where it cuts another loop."""
        for var, _ in box:
            if var != self.inner:
                raise NotGenerated(what="this region", detail=f"its loop {var.name} is cut and not the innermost")
        return dict(box).get(self.inner, (0, self.inner.extent)) if self.inner else (0, 1)

    def write(self) -> list[str]:
        before: list[str] = []
        body: list[str] = []
        copies = len(self.contexts) * self.parts * len(self.pieces)
        for context in self.contexts:
            for part in range(self.parts):
                for box, works in self.pieces:
                    lines = self._copy(context, part, box, works)
                    body += ["{", *("    " + line for line in lines), "}"] if copies > 1 else lines
            before += context.take()
        return [*before, *self.declared, *self._loops(body), *self.folded]

    def _loops(self, body: list[str]) -> list[str]:
        if self.inner is None:
            return body
        lines = [self._head(v, v.extent) for v in self.over[:-1]]
        lines = ["    " * depth + line for depth, line in enumerate(lines)]
        pragma = "#pragma omp simd" + "".join(
            f" reduction({op} : {', '.join(names)})" for op, names in self.clauses.items()
        )
        core = [pragma, self._head(self.inner, self.block or self.length), *("    " + line for line in body), "}"]
        if self.lanes:
            core = self._lane_loops(pragma, body)
        elif self.block:
            start = [declaration for declaration, _ in self.block_sums]
            core = [*start, *core, *(end for _, end in self.block_sums)]
            head = f"for (int64_t block = 0; block < {self.length}; block += {self.block}) {{"
            core = [head, *("    " + line for line in core), "}"]
        lines += ["    " * (len(self.over) - 1) + line for line in core]
        return lines + ["    " * depth + "}" for depth in reversed(range(len(self.over) - 1))]

    def _lane_loops(self, pragma: str, body: list[str]) -> list[str]:
        """A vector of lanes at a time, then what is left of the row."""
        assert self.inner is not None
        name, whole = self.column[self.inner], self.length - self.length % self.lanes

        def inner(start: str | int, count: int) -> list[str]:
            first = f"for (int64_t lane = 0; lane < {count}; ++lane) {{"
            place = f"    const int64_t {name} = {start} + lane;"
            return [pragma, first, place, *("    " + line for line in body), "}"]

        head = f"for (int64_t first = 0; first < {whole}; first += {self.lanes}) {{"
        lines = [head, *("    " + line for line in inner("first", self.lanes)), "}"]
        return lines + (inner(whole, self.length - whole) if whole < self.length else [])

    def _head(self, var: Var, extent: int) -> str:
        name = self.column[var]
        return f"for (int64_t {name} = 0; {name} < {extent}; ++{name}) {{"

    def _copy(self, context: Row, part: int, box: Box, works: list[Work]) -> list[str]:
        """The loop's body for one row in flight, one part and one box."""
        text = dict(self.column)
        if self.block and self.inner is not None:
            text[self.inner] = f"(block + {text[self.inner]})"
        scope = Scope(self.nest, context, self.over, text, self._range(box)[0] + part * self.length)
        if not self.over:
            scope.lines = []  # no loop: the row's statements come first all the same
        for work in works:
            if isinstance(work.target, Store):
                value = strip(scope.render(work.expr, root=True))
                place = scope.place(work.target)
                if place != value:
                    scope.lines.append(f"{place} = {stored(value, work.target)};")
            else:
                self._add(work.target, work.expr, context, part, scope)
        if scope.checks and self.over:
            self._clause("|", "bad")
        return scope.lines

    def _add(self, reduction: Reduce, expr: Expr, context: Row, part: int, scope: Scope) -> None:
        named = reduction.kind in ("max", "min")
        value = scope.named(expr) if named else strip(scope.render(expr, root=True))
        if self.lanes:
            scope.lines.append(accumulate(reduction, f"{self._lane_array(reduction, context)}[lane]", value)[1])
            return
        totals = context.accumulators.setdefault(id(reduction), [])
        while len(totals) <= part:
            number = f"_part{len(totals)}" if self.parts > 1 else ""
            totals.append(context.names.fresh(f"{reduction.name}{context.suffix}{number}"))
            self.declared.append(f"{accumulator_type(reduction)} {totals[-1]} = {initial(reduction)};")
        total = totals[part]
        if self.block and reduction.kind == "sum" and is_floating(reduction):
            piece = f"{total}_block"
            entry = (f"{reduction.ctype} {piece} = 0;", f"{total} += {piece};")
            if entry not in self.block_sums:
                self.block_sums.append(entry)
            total = piece
        operator, statement = accumulate(reduction, total, value)
        self._clause(operator, total)
        scope.lines.append(statement)

    def _lane_array(self, reduction: Reduce, context: Row) -> str:
        """The array of a reduction's accumulators, declared before the loop and folded into one value after it."""
        if id(reduction) not in context.lanes:
            array = context.names.fresh(f"{reduction.name}{context.suffix}_lanes")
            context.lanes[id(reduction)] = array
            start = initial(reduction)
            self.declared.append(
                f"alignas(64) {reduction.ctype} {array}[{self.lanes}]{' = {}' if start == '0' else ''};"
            )
            if start != "0":
                self.declared.append(f"for ({reduction.ctype}& lane : {array}) lane = {start};")
            name = context.names.fresh(f"{reduction.name}{context.suffix}")
            self.folded.append(f"const {reduction.ctype} {name} = lane_{reduction.kind}<{self.lanes}>({array});")
            context.accumulators[id(reduction)] = [name]
        return context.lanes[id(reduction)]

    def _clause(self, operator: str, name: str) -> None:
        names = self.clauses.setdefault(operator, [])
        if name not in names:
            names.append(name)


def stored(value: str, store: Store) -> str:
    dtype = store.buffer.dtype
    return f"float_to_{dtype}({value})" if dtype in ("bfloat16", "float16") else value


def _block(length: int) -> int:
    """The largest even piece of a long row that keeps a float sum short; 0: the row is short, or has no such piece."""
    if length <= LONG:
        return 0
    return next((size for size in range(2048, 255, -1) if length % size == 0), 0)
