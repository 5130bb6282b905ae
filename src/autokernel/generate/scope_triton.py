"""Expressions as Triton statements: at one column of one row, over the rows of a tile, or once for a program.

Where a statement goes follows from what its value varies with: values that vary along the columns of a loop stay in
it, values of a row come before that loop, and what no row changes comes before all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Affine, Var
from autokernel.generate.expression import Checked, Const, Expr, Load, Op, Pick, Position, Reduce, children
from autokernel.generate.layout import Loops
from autokernel.generate.schedule_triton import TritonSchedule
from autokernel.generate.text_triton import TYPES, Names, literal, strip

_NAMED_FROM = 9  # weight from which a value used once still gets a name, for the reader
_LONG_TEXT = 56
_COMPARISON = re.compile(r"\(\{0\} [<>=!]=? \{1\}\)")
_CALL = re.compile(r"@(\w+)\(")


@dataclass(frozen=True)
class Tile:
    """A stretch of columns. `lengths`: the extents that its positions run through, the last one fastest."""

    lengths: tuple[int, ...]
    columns: tuple[str, ...]  # what the position along each extent is called
    mask: str = ""  # which lanes are columns; "" where all are
    looped: bool = False  # one block of a loop after another
    own: bool = True  # the same for every row


@dataclass(frozen=True)
class At:
    """Where an expression is evaluated: the columns of a tile. `first`: where the segment of a variable begins."""

    tile: Tile
    over: tuple[Var, ...]
    first: Mapping[Var, int]

    @property
    def key(self) -> tuple[object, ...]:
        return self.tile, tuple(sorted((v.name, first) for v, first in self.first.items() if first))


Condition = tuple[str, frozenset[Var]]


@dataclass
class Scope:
    """The statements of one kernel function, and the names of what they computed."""

    loops: Loops
    schedule: TritonSchedule
    pointers: Mapping[str, str]  # tensor → parameter
    dtypes: Mapping[str, str]
    uses: Mapping[int, int]
    names: Names
    row_text: dict[Var, str]
    row_mask: str
    once: list[str] = field(default_factory=list)  # before all rows
    row: list[str] = field(default_factory=list)
    loop: list[str] | None = None  # the body of the loop over columns that is being written
    hint: str = ""  # how long what is read now should stay in the caches
    values: dict[object, str] = field(default_factory=dict)
    indices: dict[Var, str] = field(default_factory=dict)  # of each checked index: its name
    running: bool = False  # reductions change from block to block: what follows from them belongs to the loop
    fleeting: list[object] = field(default_factory=list)  # values that are worth nothing after such a loop

    # --- what varies with what

    def varies(self, variables: Iterable[Var], at: At | None) -> tuple[bool, bool]:
        """(by row, by column)"""
        found = self.loops.loops_of(frozenset(variables))
        return bool(found & set(self.loops.rows)), at is not None and bool(found & set(at.over))

    def _write(self, line: str, expr: Expr, at: At | None, key: object) -> None:
        """A statement, where the value of `expr` belongs; `key` is what the value is kept under."""
        by_row, by_column = self.varies(expr.variables, at)
        inside = by_column and at is not None
        if at is not None and inside and at.tile.looped:
            assert self.loop is not None
            self.loop.append(line)
        elif self.running and expr.level:
            assert self.loop is not None
            self.loop.append(line)
            self.fleeting.append(key)
        elif by_row or expr.level or (at is not None and inside and not at.tile.own):
            self.row.append(line)
        else:
            self.once.append(line)

    def settle(self) -> None:
        """After a loop over running reductions."""
        self.running = False
        for key in self.fleeting:
            self.values.pop(key, None)
        self.fleeting.clear()

    # --- values

    def render(self, expr: Expr, at: At | None, under: tuple[Condition, ...] = (), root: bool = False) -> str:
        """A name, a literal, or a text that binds tighter than any operator. `root`: the value goes straight to where
        it is stored or reduced."""
        if isinstance(expr, Const):
            return literal(expr)
        key = self._key(expr, at, under)
        if key in self.values:
            return self.values[key]
        if isinstance(expr, Reduce):
            return self.values[id(expr), None, ()]
        text = self._text(expr, at, under)
        if not self._wants_name(expr, text, root):
            return text
        name = self.names.fresh(expr.name or "value") if not isinstance(expr, Load) else self._loaded(expr)
        self._write(f"{name} = {strip(text)}", expr, at, key)
        self.values[key] = name
        return name

    def _key(self, expr: Expr, at: At | None, under: tuple[Condition, ...]) -> tuple[object, ...]:
        return id(expr), at.key if at is not None and self.varies(expr.variables, at)[1] else None, under

    def named(self, expr: Expr, at: At | None, under: tuple[Condition, ...] = ()) -> str:
        """As `render`, but always a name or a literal."""
        text = self.render(expr, at, under)
        if text.isidentifier() or isinstance(expr, Const):
            return text
        name, key = self.names.fresh(expr.name or "value"), self._key(expr, at, under)
        self._write(f"{name} = {strip(text)}", expr, at, key)
        self.values[key] = name
        return name

    def _loaded(self, expr: Load) -> str:
        return self.names.fresh(self.pointers[expr.tensor].removesuffix("_ptr"))

    def _wants_name(self, expr: Expr, text: str, root: bool) -> bool:
        if isinstance(expr, Load):
            return text.startswith(("tl.", "(tl."))
        if not isinstance(expr, (Op, Pick)) or text.isidentifier():
            return False
        if self.uses.get(id(expr), 0) > 1:
            return True
        own = expr.weight - sum(child.weight for child in children(expr))
        return not root and (own >= _NAMED_FROM or len(text) > _LONG_TEXT or isinstance(expr, Pick))

    def _text(self, expr: Expr, at: At | None, under: tuple[Condition, ...]) -> str:
        if isinstance(expr, Load):
            return self._load(expr, at, under)
        if isinstance(expr, Position):
            place = self.loops.resolve(expr.index)
            if not place.terms and not (at and any(place.coefficient(v) for v in at.over)):
                return f"tl.full((), {place.constant}, tl.int64)"
            return f"({self.index(place, at)}).to(tl.int64)"
        if isinstance(expr, Pick):
            assert expr.first is not None and expr.second is not None
            index = self.loops.resolve(expr.index)
            chosen = f"{self.index(index, at)} < {expr.bound}"
            variables = frozenset(v for v in index.variables if not v.dynamic)
            first = self.render(expr.first, at, (*under, (f"({chosen})", variables)))
            other = self.index(index, at)
            second = self.render(expr.second, at, (*under, (f"({other} >= {expr.bound})", variables)))
            return f"tl.where({chosen}, {first}, {second})"
        assert isinstance(expr, Op)
        return self._operation(expr, at, under)

    def _operation(self, expr: Op, at: At | None, under: tuple[Condition, ...]) -> str:
        if expr.template == "@div({0}, {1})" and self._by_row(expr, at):
            divisor = self._reciprocal(expr.args[1], at, under)
            return f"({self.render(expr.args[0], at, under)} * {divisor})"
        if expr.template == "@exp({0})" and self.schedule.exp == "folded":
            made = self._folded(expr.args[0], at, under)
            if made:
                return made
        plain = _COMPARISON.fullmatch(expr.template) is not None
        parts = []
        for place, arg in enumerate(expr.args):
            if plain and isinstance(arg, Position) and self.loops.resolve(arg.index).terms:
                parts.append(f"({self.index(self.loops.resolve(arg.index), at)})")  # no need of 64 bits
                continue
            repeated = expr.template.count(f"{{{place}}}") > 1
            part = self.named(arg, at, under) if repeated else self.render(arg, at, under)
            alone = re.search(rf"(?<=[(,] )\{{{place}\}}(?=[,)])|\(\{{{place}\}}[,)]", expr.template)
            parts.append(strip(part) if alone and not expr.template.startswith("(") else part)
        text = expr.template.format(*parts, T=TYPES[expr.ctype])
        return _CALL.sub(lambda found: self.function(found[1]), text)

    def function(self, name: str) -> str:
        """How the schedule writes `@name(`."""
        if name == "div":
            return "tl.div_rn(" if self.schedule.divide == "exact" else "tl.fdiv("
        return f"exact_{name}(" if self.schedule.exp == "exact" or name == "log" else f"tl.{name}("

    def _by_row(self, expr: Op, at: At | None) -> bool:
        """A division of columns by one value of the row."""
        if self.schedule.divide != "reciprocal" or at is None:
            return False
        value, divisor = expr.args
        one = not self.varies(divisor.variables, at)[1] and (divisor.level > 0 or bool(divisor.variables))
        return one and self.varies(value.variables, at)[1]

    def _reciprocal(self, divisor: Expr, at: At | None, under: tuple[Condition, ...]) -> str:
        key = ("reciprocal", id(divisor), under)
        if key not in self.values:
            value = self.render(divisor, None, under)
            self.values[key] = self.names.fresh(f"{divisor.name or 'value'}_reciprocal")
            self._write(f"{self.values[key]} = tl.div_rn(1.0, {strip(value)})", divisor, None, key)
        return self.values[key]

    def _folded(self, power: Expr, at: At | None, under: tuple[Condition, ...]) -> str:
        """e^(a - m) with m of the row as a power of two; "" where it isn't of that form."""
        if not isinstance(power, Op) or power.template != "({0} - {1})" or at is None:
            return ""
        value, shift = power.args
        if self.varies(shift.variables, at)[1] or not self.varies(value.variables, at)[1]:
            return ""
        key = ("scaled", id(shift), under)
        if key not in self.values:
            text = self.render(shift, None, under)
            self.values[key] = self.names.fresh(f"{shift.name or 'shift'}_log2")
            self._write(f"{self.values[key]} = {text} * 1.4426950408889634", shift, None, key)
        return f"tl.exp2({self.render(value, at, under)} * 1.4426950408889634 - {self.values[key]})"

    # --- places in memory

    def _load(self, expr: Load, at: At | None, under: tuple[Condition, ...]) -> str:
        for checked in expr.checked:
            self._check(checked, at, under)
        by_row, by_column = self.varies(expr.variables, at)
        masks = self.masks(expr.variables, at)
        for text, variables in under:
            rows, columns = self.varies(variables, at)
            if (rows and not by_row) or (columns and not by_column):
                raise NotGenerated(what=expr.name, detail="it is read behind a condition that varies where it does not")
            masks.append(text)
        address = self.address(expr.tensor, self.loops.resolve(expr.offset), at)
        key = ("load", address, tuple(masks))
        if key not in self.values:
            dtype = self.dtypes[expr.tensor]
            arguments = [address]
            if masks:
                arguments += [f"mask={' & '.join(masks)}", "other=0.0" if "float" in dtype else "other=0"]
            if self.schedule.evict == "hints" and by_column:
                arguments.append(f'eviction_policy="{self.hint if by_row else "evict_last"}"')
            text = f"tl.load({', '.join(arguments)})"
            convert = {"bfloat16": "float32", "float16": "float32", "uint8": "int32"}.get(dtype)
            self.values[key] = self._loaded(expr)
            line = f"{self.values[key]} = {text}" + (f".to(tl.{convert})" if convert else "")
            self._write(line, expr, at, key)
        return self.values[key]

    def masks(self, variables: Iterable[Var], at: At | None) -> list[str]:
        by_row, by_column = self.varies(variables, at)
        found = [self.row_mask] if by_row and self.row_mask else []
        return found + ([at.tile.mask] if by_column and at is not None and at.tile.mask else [])

    def address(self, tensor: str, offset: Affine, at: At | None) -> str:
        pointer = self.pointers[tensor]
        return f"{pointer} + {self.index(offset, at)}" if offset.terms or offset.constant else pointer

    def store(self, tensor: str, offset: Affine, value: str, at: At | None) -> None:
        place = self.loops.resolve(offset)
        by_column = self.varies(place.variables, at)[1]
        masks = self.masks(place.variables, at)
        condition = f", mask={' & '.join(masks)}" if masks else ""
        lines = self.loop if by_column and at is not None and at.tile.looped else self.row
        assert lines is not None
        lines.append(f"tl.store({self.address(tensor, place, at)}, {strip(value)}{condition})")

    def index(self, affine: Affine, at: At | None) -> str:
        """An index as text: rows, then the constant, then columns, so that a row's start is formed once."""
        rows, columns, constant = [], [], affine.constant
        for var, factor in affine.terms:
            if at is not None and var in at.over:
                constant += factor * at.first.get(var, 0)
                name = at.tile.columns[at.over.index(var)]
                columns.append(name if factor == 1 else f"{name} * {factor}")
            else:
                name = self.indices[var] if var.dynamic else self.row_text[var]
                rows.append(name if factor == 1 else f"{name} * {factor}")
        parts = rows + ([str(constant)] if constant or not (rows or columns) else []) + columns
        return " + ".join(parts).replace("+ -", "- ")

    def _check(self, checked: Expr, at: At | None, under: tuple[Condition, ...]) -> None:
        """The index under a name, moved inside its tensor whatever was read."""
        assert isinstance(checked, Checked) and checked.var is not None and checked.value is not None
        key = self._key(checked, at, under)
        if key not in self.values:
            value = self.render(checked.value, at, under)
            name = self.names.fresh(f"{checked.value.name or 'index'}_inside")
            line = f"{name} = tl.minimum(tl.maximum({strip(value)}, 0), {checked.var.extent - 1})"
            self._write(line, checked, at, key)
            self.values[key] = name
        self.indices[checked.var] = self.values[key]
