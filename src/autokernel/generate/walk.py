"""From the lowered graph to scalar expressions: what one element of a node is, at a given index.

Index maps cost nothing: they only change the index that is asked of their operand. A reduction becomes one value per
row. Three things interrupt a walk; the planner answers and walks again:

`SplitNeeded`    a reshape cuts a loop variable in two (see affine.py)
`SegmentNeeded`  a `cat` along the innermost loop: the loop is cut at that point, so that no piece holds a branch
`CutNeeded`      a reduction over values that need other reductions first: its operand gets a buffer of its own
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Affine, SplitNeeded, Var, flatten, reshape_index, unflatten
from autokernel.generate.buffer import Buffer
from autokernel.generate.dialect import dialect_of
from autokernel.generate.expression import Box, Checked, Const, Expr, Load, Op, Pick, Position, Reduce, walk
from autokernel.generate.operators import row_of

aten = torch.ops.aten
Index = tuple[Affine, ...]

CTYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "float",
    torch.float16: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.bool: "bool",
    torch.uint8: "int32_t",
}
_RANK = ("bool", "int32_t", "int64_t", "float", "double")
_REDUCTIONS = {
    aten.sum.dim_IntList: "sum",
    aten.mean.dim: "sum",
    aten.amax.default: "max",
    aten.amin.default: "min",
    aten.prod.dim_int: "prod",
    aten.any.dims: "any",
    aten.all.dims: "all",
}


class SegmentNeeded(Exception):
    def __init__(self, var: Var, point: int) -> None:
        self.var, self.point = var, point
        super().__init__(f"{var.name} at {point}")


class CutNeeded(Exception):
    def __init__(self, node: fx.Node) -> None:
        self.node = node
        super().__init__(node.name)


def ctype_of(dtype: torch.dtype) -> str:
    """The C type values of a dtype are computed in. Raises `NotGenerated`."""
    if dtype not in CTYPES:
        raise NotGenerated(
            what=f"values of dtype {str(dtype).removeprefix('torch.')}", detail="it has no C++ type here"
        )
    return CTYPES[dtype]


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(int(extent) for extent in node.meta["val"].shape)


class Walker:
    """Expressions of one loop nest. `splits` and `columns` are what earlier walks found out."""

    def __init__(
        self,
        readable: Mapping[fx.Node, Buffer],
        splits: Mapping[str, tuple[int, ...]],
        columns: tuple[Var, ...] | None,
        inner: Var | None,
        language: str = "cpp",
    ) -> None:
        self.dialect = dialect_of(language)
        self.readable = readable  # tensors in memory: inputs, and nodes with a buffer of their own
        self.splits = splits
        self.columns = columns
        self.inner = inner
        self.memo: dict[tuple[fx.Node, Index, Box], Expr] = {}
        self.interned: dict[tuple[Any, ...], Expr] = {}
        self.dynamic: dict[Var, Checked] = {}
        self.roots: set[fx.Node] = set()  # nodes this nest computes: never loaded

    # --- variables

    def variables(self, base: str, extent: int) -> tuple[Var, ...]:
        """The loop variables that stand for one dim; more than one after a split, none for an extent of 1."""
        factors = self.splits.get(base, (extent,))
        if len(factors) == 1:
            return () if extent == 1 else (Var(base, extent),)
        return tuple(Var(f"{base}_{k}", factor) for k, factor in enumerate(factors) if factor > 1)

    def position(self, base: str, extent: int) -> Affine:
        chosen = self.variables(base, extent)
        return flatten(tuple(Affine.var(v) for v in chosen), tuple(v.extent for v in chosen))

    # --- expressions

    def value(self, node: fx.Node, index: Index, box: Box) -> Expr:
        """The element of `node` at `index`. `box` holds the ranges of segmented variables."""
        key = (node, index, box)
        if key not in self.memo:
            self.memo[key] = self._value(node, index, box)
        return self.memo[key]

    def _value(self, node: fx.Node, index: Index, box: Box) -> Expr:
        if node in self.readable and node not in self.roots:
            return self.load(node, index)
        if node.op != "call_function":
            raise NotGenerated(what=node.name, detail=f"a graph node of kind {node.op}")
        if node.target in _REDUCTIONS:
            return self._reduce(node, index)
        rule = _INDEX_RULES.get(node.target)
        if rule is not None:
            return rule(self, node, index, box)
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
            return self._pointwise(node, index, box)
        raise NotGenerated(
            what=str(node.target).removeprefix("aten."), detail="it is neither pointwise nor a row reduction"
        )

    def segments(self, evaluate: Callable[[Box], Expr]) -> tuple[tuple[Box, Expr], ...]:
        """`evaluate` on as few segments of the innermost loop as its `cat`s ask for."""
        waiting: list[Box] = [()]
        done = []
        while waiting:
            box = waiting.pop(0)
            try:
                done.append((box, evaluate(box)))
            except SegmentNeeded as need:
                ranges = dict(box)
                first, end = ranges.get(need.var, (0, need.var.extent))
                halves = ((first, need.point), (need.point, end))
                waiting[:0] = [tuple(sorted({**ranges, need.var: half}.items())) for half in halves]
        return tuple(done)

    def load(self, node: fx.Node, index: Index) -> Expr:
        buffer, offset = self.readable[node], Affine()
        for part, stride, extent in zip(index, buffer.stride, buffer.shape, strict=True):
            if extent > 1:
                offset = offset + part * stride
        checked = tuple(self.dynamic[v] for v, _ in offset.terms if v.dynamic)
        variables = frozenset(v for v in offset.variables if not v.dynamic).union(*(c.variables for c in checked))
        level = max((c.level for c in checked), default=0)
        ctype = ctype_of(node.meta["val"].dtype)
        key = ("load", buffer.name, offset)
        return self.intern(key, lambda: Load(ctype, buffer.name, variables, level, 1, buffer.name, offset, checked))

    def intern(self, key: tuple[Any, ...], make: Callable[[], Expr]) -> Expr:
        if key not in self.interned:
            self.interned[key] = make()
        return self.interned[key]

    def const(self, value: Any, ctype: str) -> Expr:
        if ctype == "bool":
            value = bool(value)
        elif ctype.startswith("int"):
            value = int(value)
        else:
            value = float(value)
        return self.intern(("const", repr(value), ctype), lambda: Const(ctype, "", frozenset(), 0, 0, value))

    def op(self, name: str, ctype: str, template: str, args: tuple[Expr, ...], weight: int = 1) -> Expr:
        variables = frozenset().union(*(arg.variables for arg in args)) if args else frozenset()
        level = max((arg.level for arg in args), default=0)
        total = min(weight + sum(arg.weight for arg in args), 10_000)
        key = ("op", ctype, template, tuple(id(arg) for arg in args))
        return self.intern(key, lambda: Op(ctype, name, variables, level, total, template, args))

    def cast(self, expr: Expr, ctype: str) -> Expr:
        if expr.ctype == ctype:
            return expr
        if isinstance(expr, Const):
            return self.const(expr.value, ctype)
        return self.op(expr.name, ctype, self.dialect.cast(ctype), (expr,))

    def _operand(self, value: Any, shape: tuple[int, ...], index: Index, box: Box) -> Expr | int | float | bool:
        """An operand of a pointwise node, broadcast to its result's index."""
        if not isinstance(value, fx.Node):
            return value  # type: ignore[no-any-return]
        own = shape_of(value)
        tail = index[len(index) - len(own) :]
        return self.value(
            value, tuple(Affine() if extent == 1 else part for part, extent in zip(tail, own, strict=True)), box
        )

    def _pointwise(self, node: fx.Node, index: Index, box: Box) -> Expr:
        found = row_of(node)
        if found is None:
            raise NotGenerated(
                what=str(node.target).removeprefix("aten."), detail="it has no row in the operator table"
            )
        key, raw = found
        shape, ctype = shape_of(node), ctype_of(node.meta["val"].dtype)
        operands = [self._operand(value, shape, index, box) for value in raw]
        if key == "clamp":
            return self._clamp(node, operands, ctype)
        if key == "div" and ctype in ("float", "double") and isinstance(operands[1], (int, float)):
            mantissa = math.frexp(float(operands[1]))[0]
            if abs(mantissa) == 0.5:  # a power of two, whose reciprocal is exact
                key, operands[1] = "mul", 1.0 / operands[1]
        if key in ("clamp_min", "clamp_max"):
            return self._clamp(node, [operands[0], *(None,) * (key == "clamp_max"), operands[1]], ctype)
        row = self.dialect.table[key]
        inner = ctype
        if row.rule in ("compare", "test"):
            inner = common_type(operands)
        wanted = ["bool", ctype, ctype] if row.rule == "where" else [inner] * len(operands)
        args = tuple(
            self.cast(value, want) if isinstance(value, Expr) else self.const(value, want)
            for value, want in zip(operands, wanted, strict=True)
        )
        template = {"float": row.floating, "double": row.double}.get(inner, row.integer)
        if not template:
            raise NotGenerated(what=f"{key} on {inner}", detail="it has no row in the operator table")
        return self._wrapped(node, self.op(node.name, ctype, template, args, row.weight))

    def _wrapped(self, node: fx.Node, expr: Expr) -> Expr:
        """A result of dtype uint8 is what is left of it modulo 256; it is computed in int32."""
        if node.meta["val"].dtype != torch.uint8:
            return expr
        if isinstance(expr, Const):
            return self.const(int(expr.value) % 256, "int32_t")
        return self.op(expr.name, "int32_t", self.dialect.byte, (expr,))

    def _clamp(self, node: fx.Node, operands: list[Any], ctype: str) -> Expr:
        value = self.cast(operands[0], ctype)
        for bound, key in zip(operands[1:], ("clamp_min", "clamp_max"), strict=False):
            if bound is not None:
                edge = self.cast(bound, ctype) if isinstance(bound, Expr) else self.const(bound, ctype)
                value = self.op(node.name, ctype, self._bound(key, bound, ctype), (value, edge))
        return value

    def _bound(self, key: str, bound: Any, ctype: str) -> str:
        """The template of one side of a clamp: a bound that may be NaN makes the result NaN."""
        if ctype not in ("float", "double") or (not isinstance(bound, Expr) and not math.isnan(bound)):
            return self.dialect.table[key].floating
        return self.dialect.table["maximum" if key == "clamp_min" else "minimum"].floating

    def _reduce(self, node: fx.Node, index: Index) -> Expr:
        source, dims = node.args[0], node.args[1]
        assert isinstance(source, fx.Node)
        axes = (dims,) if isinstance(dims, int) else tuple(dims)  # type: ignore[arg-type]
        shape, ctype = shape_of(source), ctype_of(node.meta["val"].dtype)
        kind = _REDUCTIONS[node.target]  # type: ignore[index]
        reduced = tuple(shape[axis] for axis in axes)
        count = 1
        for extent in reduced:
            count *= extent

        def make() -> Expr:
            over, inner = self._reduced_index(reduced, index)
            full = tuple(
                inner[axes.index(axis)] if axis in axes else part for axis, part in enumerate(index)
            )  # fmt: skip
            outer, self.inner = self.inner, over[-1] if over else None
            try:
                parts = self.segments(lambda box: self.cast(self.value(source, full, box), ctype))
            finally:
                self.inner = outer
            below = [expr for _, part in parts for expr in walk(part) if isinstance(expr, Reduce)]
            if any(expr.variables & set(over) for expr in below):
                raise CutNeeded(source)
            arguments = [part for _, part in parts]
            variables = frozenset().union(*(part.variables for part in arguments)) - set(over)
            level = 1 + max(part.level for part in arguments)
            weight = min(count * max(part.weight for part in arguments), 10_000)
            name = f"{node.name}_sum" if node.target is aten.mean.dim else node.name
            return Reduce(ctype, name, variables, level, weight, kind, over, parts)

        total = self.intern(("reduce", node, index), make)
        if node.target is aten.mean.dim:
            division = self.dialect.table["div"]
            template = division.double if ctype == "double" else division.floating
            return self.op(node.name, ctype, template, (total, self.const(count, ctype)), 4)
        return self._wrapped(node, total)

    def _reduced_index(self, reduced: tuple[int, ...], at: Index) -> tuple[tuple[Var, ...], Index]:
        """Loop variables of a reduction at row `at`, and the index they make: the row's own columns where they fit."""
        taken = {v.name for part in at for v in part.variables}
        extents = [v.extent for v in self.columns or ()]
        free = not any(v.name in taken for v in self.columns or ())
        if self.columns and free and _product(extents) == _product(reduced):
            position = flatten(tuple(Affine.var(v) for v in self.columns), tuple(extents))
            try:
                return self.columns, unflatten(position, reduced, {})
            except (NotGenerated, SplitNeeded):
                pass  # the row's own variables don't line up with the reduced dims: loop over those instead
        over: list[Var] = []
        index: list[Affine] = []
        depth = 0
        while any(name.startswith(f"r{depth}.") for name in taken):
            depth += 1
        for axis, extent in enumerate(reduced):
            base = f"r{depth}.{axis}.{'x'.join(map(str, reduced))}"
            over += self.variables(base, extent)
            index.append(self.position(base, extent))
        return tuple(over), tuple(index)


def common_type(operands: list[Any]) -> str:
    """The type a comparison is made in."""
    types = [value.ctype for value in operands if isinstance(value, Expr)]
    if any(isinstance(value, float) for value in operands) and all(t in _RANK[:3] for t in types):
        types.append("float")
    return max(types, key=_RANK.index)


def _product(extents: Any) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


# --- index maps ---------------------------------------------------------------------------------------------------


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _reshape(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    source = _source(node)
    return self.value(source, reshape_index(index, shape_of(node), shape_of(source), dict(box)), box)


def _permute(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    order: Any = node.args[1]
    moved = [Affine()] * len(index)
    for to, source in enumerate(order):
        moved[source] = index[to]
    return self.value(_source(node), tuple(moved), box)


def _expand(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    own = shape_of(_source(node))
    tail = index[len(index) - len(own) :]
    return self.value(
        _source(node), tuple(Affine() if n == 1 else part for part, n in zip(tail, own, strict=True)), box
    )


def _slice(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    given = [*node.args, *(None, 0, 0, None, 1)[len(node.args) :]]
    axis, start, step = given[1], given[2], given[4]
    parts = list(index)
    parts[axis] = parts[axis] * int(step or 1) + int(start or 0)  # type: ignore[index, arg-type]
    return self.value(_source(node), tuple(parts), box)


def _flip(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    parts, shape = list(index), shape_of(node)
    for axis in node.args[1]:  # type: ignore[union-attr]
        parts[axis] = parts[axis] * -1 + (shape[axis] - 1)  # type: ignore[index]
    return self.value(_source(node), tuple(parts), box)


def _same(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    return self.value(_source(node), index, box)


def _to_copy(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    value = self.value(_source(node), index, box)
    if _source(node).meta["val"].dtype in (torch.uint8, torch.bool):
        return self.cast(value, ctype_of(node.meta["val"].dtype))
    return self.cast(self._wrapped(node, value), ctype_of(node.meta["val"].dtype))


def _cat(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    pieces: Any = node.args[0]
    axis: int = node.args[1] if len(node.args) > 1 else 0  # type: ignore[assignment]
    low, high = index[axis].range(dict(box))
    starts, start = [], 0
    for piece in pieces:
        starts.append((piece, start, start + shape_of(piece)[axis]))
        start += shape_of(piece)[axis]

    def at(piece: fx.Node, first: int) -> Expr:
        parts = list(index)
        parts[axis] = parts[axis] + (-first)
        return self.value(piece, tuple(parts), box)

    def unconditional(piece: fx.Node, value: Expr) -> Expr:
        if any(isinstance(expr, (Reduce, Checked)) for expr in walk(value)):
            raise CutNeeded(piece)  # these can't stand behind a condition
        return self.cast(value, ctype)

    met = [(piece, first, end) for piece, first, end in starts if first <= high and low < end and first < end]
    if len(met) == 1:
        return at(met[0][0], met[0][1])
    terms = index[axis].terms
    if len(terms) == 1 and terms[0][1] == 1 and terms[0][0] == self.inner:
        raise SegmentNeeded(terms[0][0], met[1][1] - index[axis].constant)
    ctype = ctype_of(node.meta["val"].dtype)
    # Each piece's index is right only where the piece is chosen; the emitted `?:` evaluates no other.
    result = unconditional(met[-1][0], at(met[-1][0], met[-1][1]))
    for piece, first, end in reversed(met[:-1]):
        mine, rest = unconditional(piece, at(piece, first)), result
        variables = mine.variables | rest.variables | {v for v in index[axis].variables if not v.dynamic}
        level, weight = max(mine.level, rest.level), mine.weight + rest.weight + 1
        key = ("pick", index[axis], end, id(mine), id(rest))
        made = Pick(ctype, node.name, variables, level, weight, index[axis], end, mine, rest)
        result = self.intern(key, lambda made=made: made)  # type: ignore[misc]
    return result


def _full(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    return self._wrapped(node, self.const(node.args[1], ctype_of(node.meta["val"].dtype)))


def _arange(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    given = [*node.args, *(0, 0, 1)[len(node.args) :]]
    start, step = given[0], given[2]
    ctype = ctype_of(node.meta["val"].dtype)
    if not isinstance(start, int) or not isinstance(step, int):
        raise NotGenerated(what="arange", detail="its start or step is not an integer")
    place = index[0] * step + start
    variables = frozenset(v for v in place.variables if not v.dynamic)
    here = self.intern(("position", place), lambda: Position("int64_t", node.name, variables, 0, 1, place))
    return self.cast(self._wrapped(node, here), ctype)


def _gather(self: Walker, node: fx.Node, index: Index, box: Box) -> Expr:
    source, axis, chooser = node.args[:3]
    assert isinstance(source, fx.Node) and isinstance(chooser, fx.Node) and isinstance(axis, int)
    chosen = self.cast(self.value(chooser, index, box), "int64_t")
    key = ("checked", id(chosen), shape_of(source)[axis])

    def make() -> Expr:
        var = Var(f"{chooser.name}_at{len(self.dynamic)}", shape_of(source)[axis], dynamic=True)
        self.dynamic[var] = Checked("int64_t", var.name, chosen.variables, chosen.level, chosen.weight + 1, var, chosen)
        return self.dynamic[var]

    checked = self.intern(key, make)
    assert isinstance(checked, Checked) and checked.var is not None
    parts = list(index)
    parts[axis] = Affine.var(checked.var)
    return self.value(source, tuple(parts), box)


_INDEX_RULES: dict[Any, Callable[[Walker, fx.Node, Index, Box], Expr]] = {
    aten.reshape.default: _reshape,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.flip.default: _flip,
    aten.clone.default: _same,
    aten._to_copy.default: _to_copy,
    aten.cat.default: _cat,
    aten.full.default: _full,
    aten.arange.start_step: _arange,
    aten.gather.default: _gather,
}


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)
