"""Expressions as C++ statements: at one column of one row, or once for a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autokernel.generate.affine import Affine, Var
from autokernel.generate.expression import Checked, Const, Expr, Load, Op, Pick, Position, Reduce, children
from autokernel.generate.plan import Store
from autokernel.generate.text_cpp import STORAGE, Names, index_text, literal, strip

if TYPE_CHECKING:
    from autokernel.generate.nest_cpp import NestWriter

_NAMED_FROM = 9  # weight from which a value used once still gets a name, for the reader
_LONG_TEXT = 64


@dataclass
class Row:
    """One of the rows in flight: what has been computed for it, and the statements its next loop waits for."""

    shift: int  # its distance from the first
    suffix: str
    text: dict[Var, str]
    names: Names
    lines: list[str] = field(default_factory=list)
    values: dict[int, str] = field(default_factory=dict)  # id of expression → name
    pointers: dict[tuple[str, Affine], str] = field(default_factory=dict)
    accumulators: dict[int, list[str]] = field(default_factory=dict)  # id of reduction → names
    lanes: dict[int, str] = field(default_factory=dict)  # id of reduction → array of accumulators
    reciprocals: dict[int, str] = field(default_factory=dict)

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Scope:
    """Renders expressions. With `over` (the loops around), values that vary along them are statements in `lines`;
    all others are statements of the row. Without, everything is the row's."""

    def __init__(
        self,
        writer: NestWriter,
        row: Row,
        over: tuple[Var, ...] = (),
        text: Mapping[Var, str] | None = None,
        shift: int = 0,
    ) -> None:
        self.writer, self.row, self.over, self.shift = writer, row, over, shift
        self.inner = over[-1] if over else None
        self.text = {**row.text, **(text or {})}
        self.lines: list[str] = [] if over else row.lines
        self.values: dict[int, str] = {} if over else row.values
        self.names = Names(row.names) if over else row.names
        self.checks = False  # an index was checked at every column

    # --- values

    def render(self, expr: Expr, inline: bool = False, root: bool = False) -> str:
        """A name, a literal, or a text that binds tighter than any operator. `inline`: no statements (behind a `?:`);
        `root`: the value goes straight to where it is stored or added."""
        if isinstance(expr, Const):
            return literal(expr)
        at_row = not self.writer.varies(expr, self.over)
        for values in (self.values, self.row.values):
            if id(expr) in values:
                return values[id(expr)]
        assert not isinstance(expr, Reduce), "a reduction is finished before it is used"
        if not at_row and id(expr) in self.writer.ready and self.over == self.writer.loops.columns:
            return self._kept_place(expr)
        if at_row and self.over and not inline:
            return Scope(self.writer, self.row).named(expr)
        text = self._text(expr, inline)
        if inline or not self._wants_name(expr, text, root):
            return text
        return self._name(expr, text)

    def named(self, expr: Expr) -> str:
        """As `render`, but always a name or a literal."""
        text = self.render(expr)
        return text if text.isidentifier() or isinstance(expr, Const) else self._name(expr, text)

    def _name(self, expr: Expr, text: str) -> str:
        name = self.names.fresh(_wish(expr) + self.row.suffix)
        self.lines.append(f"const {expr.ctype} {name} = {strip(text)};")
        self.values[id(expr)] = name
        if self.over == self.writer.loops.columns and self.writer.kept.get(id(expr), "=")[0] != "=":
            self.lines.append(f"{self._kept_place(expr)} = {name};")
        return name

    def _wants_name(self, expr: Expr, text: str, root: bool) -> bool:
        if not isinstance(expr, (Op, Pick, Load)):
            return False
        if id(expr) in self.writer.kept and self.over == self.writer.loops.columns:
            return True
        if self.writer.uses.get(id(expr), 0) > 1:
            return True
        own = expr.weight - sum(child.weight for child in children(expr))
        return not root and isinstance(expr, Op) and (own >= _NAMED_FROM or len(text) > _LONG_TEXT)

    def _text(self, expr: Expr, inline: bool) -> str:
        if isinstance(expr, Load):
            return self._load(expr, inline)
        if isinstance(expr, Position):
            return f"({self.index(self.writer.loops.resolve(expr.index))})"
        if isinstance(expr, Pick):
            assert expr.first is not None and expr.second is not None
            condition = f"{self.index(self.writer.loops.resolve(expr.index))} < {expr.bound}"
            return f"({condition} ? {self.render(expr.first, True)} : {self.render(expr.second, True)})"
        assert isinstance(expr, Op)
        if expr.template == "({0} / {1})" and not inline and self._by_row(expr):
            return f"({self.render(expr.args[0], inline)} * {self._reciprocal(expr.args[1])})"
        parts = []
        for place, arg in enumerate(expr.args):
            repeated = expr.template.count(f"{{{place}}}") > 1 and not inline
            part = self.named(arg) if repeated else self.render(arg, inline)
            parts.append(strip(part) if f"({{{place}}})" in expr.template else part)
        text = expr.template.format(*parts)
        return f"({text})" if "?" in text and not text.startswith("(") else text

    def _by_row(self, expr: Op) -> bool:
        """A division of columns by one value of the row."""
        if self.writer.schedule.divide != "reciprocal" or expr.ctype not in ("float", "double") or not self.over:
            return False
        value, divisor = expr.args
        one = not self.writer.varies(divisor, self.over) and (divisor.level > 0 or bool(divisor.variables))
        return one and self.writer.varies(value, self.over)

    def _reciprocal(self, divisor: Expr) -> str:
        if id(divisor) not in self.row.reciprocals:
            value = self.render(divisor)
            name = self.row.names.fresh(f"{_wish(divisor)}_reciprocal{self.row.suffix}")
            self.row.lines.append(f"const {divisor.ctype} {name} = 1 / {value};")
            self.row.reciprocals[id(divisor)] = name
        return self.row.reciprocals[id(divisor)]

    # --- places in memory

    def _load(self, expr: Load, inline: bool) -> str:
        for checked in expr.checked:
            self._check(checked)
        offset = self.writer.loops.resolve(expr.offset)
        if inline:  # the address is formed where it is used: it may be outside the tensor elsewhere
            text = f"{self.writer.symbols[expr.tensor]}[{self.index(offset)}]"
        else:
            text = self._place(expr.tensor, offset)
        dtype = self.writer.dtypes[expr.tensor]
        return f"{dtype}_to_float({text})" if dtype in ("bfloat16", "float16") else text

    def _place(self, tensor: str, offset: Affine) -> str:
        rows = self.writer.loops.rows
        return f"{self.pointer(tensor, offset.only(rows))}[{self.index(offset.without(rows))}]"

    def pointer(self, tensor: str, offset: Affine) -> str:
        """Where the row of a tensor begins; `offset` in row loops only."""
        symbol = self.writer.symbols[tensor]
        if not offset.terms:
            return symbol
        key = (tensor, offset)
        if key not in self.row.pointers:
            name = self.row.names.fresh(f"{symbol}_row{self.row.suffix}")
            kind = STORAGE[self.writer.dtypes[tensor]]
            constant = "" if tensor in self.writer.outputs else "const "
            place = index_text(offset, self.row.text)
            self.row.lines.append(f"{constant}{kind}* const {name} = {symbol} + {place};")
            self.row.pointers[key] = name
        return self.row.pointers[key]

    def place(self, store: Store) -> str:
        """Where a store's element goes: its output, or the array its row is finished in."""
        offset = self.writer.loops.resolve(store.offset)
        array = self.writer.streamed.get(store.buffer.name)
        if array is not None and not store.row_only:
            return f"{array}{self.row.suffix}[{self.index(offset.without(self.writer.loops.rows))}]"
        return self._place(store.buffer.name, offset)

    def _kept_place(self, expr: Expr) -> str:
        where = self.writer.kept[id(expr)]
        if where[0] in "=+":
            return self.place(next(s for s in self.writer.nest.stores if s.buffer.name == where[1:]))
        position = Affine()
        for var in self.over:
            position = position * var.extent + Affine.var(var)
        return f"{where}{self.row.suffix}[{self.index(position)}]"

    def index(self, affine: Affine) -> str:
        """An index as text, at this copy of the loop's body."""
        moved = affine + affine.coefficient(self.inner) * self.shift if self.inner is not None else affine
        return index_text(moved, self.text)

    def _check(self, checked: Expr) -> None:
        """The index as a variable that is inside its tensor whatever was read; the flag tells of one that wasn't."""
        assert isinstance(checked, Checked) and checked.var is not None and checked.value is not None
        if not self.writer.varies(checked, self.over) and self.over:
            outer = Scope(self.writer, self.row)
            outer._check(checked)
            self.text[checked.var] = outer.text[checked.var]
            return
        if id(checked) not in self.values:
            value = self.named(checked.value)
            name = self.names.fresh(f"{_wish(checked.value)}_inside{self.row.suffix}")
            inside = f"{value} >= 0 && {value} < {checked.var.extent}"
            self.lines.append(f"bad |= !({inside});")
            self.lines.append(f"const int64_t {name} = {inside} ? {value} : 0;")
            self.values[id(checked)] = name
            self.checks = True
        self.text[checked.var] = self.values[id(checked)]


def _wish(expr: Expr) -> str:
    return f"{expr.name}_value" if isinstance(expr, Load) else expr.name or "value"
