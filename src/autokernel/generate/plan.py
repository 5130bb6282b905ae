"""The region as loop nests: which outputs share a nest, which loops are rows and which are columns, what is buffered.

A *row* nest has reductions: its outer loops (rows) are independent of each other, its inner loops (columns) are what
the reductions run over, in as many passes as reductions depend on one another. A *pointwise* nest has rows only; the
innermost becomes the vectorised loop. A reduction whose operand needs other reductions first (the mean of a
cross-entropy) runs in a nest of its own, over a buffer that an earlier nest fills.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import fx

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Affine, SplitNeeded, Var
from autokernel.generate.buffer import Buffer, dense
from autokernel.generate.expression import Box, Expr, Load, Pick, Position, Reduce, walk
from autokernel.generate.walk import CutNeeded, Walker, ctype_of, is_tensor, shape_of
from autokernel.records import Task, TensorSpec

_ATTEMPTS = 60


@dataclass(frozen=True)
class Store:
    buffer: Buffer
    offset: Affine
    parts: tuple[tuple[Box, Expr], ...]
    row_only: bool = False  # one value a row

    @property
    def level(self) -> int:
        return max(expr.level for _, expr in self.parts)


@dataclass
class Nest:
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    stores: tuple[Store, ...]
    reductions: tuple[Reduce, ...]  # by level
    renamed: dict[Var, Affine] = field(default_factory=dict)  # merged variables

    @property
    def kind(self) -> str:
        return "row" if self.reductions else "pointwise"

    def expressions(self) -> list[Expr]:
        """Every expression, those inside reductions included."""
        roots = [expr for store in self.stores for _, expr in store.parts]
        roots += [part for reduction in self.reductions for _, part in reduction.parts]
        return walk(*roots)

    def indices(self) -> list[Affine]:
        """Every index that is computed in the nest."""
        found = [store.offset for store in self.stores]
        for expr in self.expressions():
            if isinstance(expr, Load):
                found.append(expr.offset)
            elif isinstance(expr, (Position, Pick)):
                found.append(expr.index)
        return found

    def boxed(self) -> set[Var]:
        parts = [part for store in self.stores for part in store.parts]
        parts += [part for reduction in self.reductions for part in reduction.parts]
        return {v for box, _ in parts for v, _ in box}


@dataclass(frozen=True)
class Plan:
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspaces: tuple[Buffer, ...]
    nests: tuple[Nest, ...]

    @property
    def kind(self) -> str:
        return "row" if any(nest.kind == "row" for nest in self.nests) else "pointwise"


def plan(module: fx.GraphModule, task: Task | None = None, language: str = "cpp") -> Plan:
    """Loop nests for a lowered module, with the layouts of `task` where given. Raises `NotGenerated`, `UnknownName`."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    (end,) = [node for node in module.graph.nodes if node.op == "output"]
    results = list(end.args[0]) if isinstance(end.args[0], (tuple, list)) else [end.args[0]]
    if any(not isinstance(node, fx.Node) or not is_tensor(node) for node in (*placeholders, *results)):
        raise NotGenerated(what="this region", detail="an input or output is not a tensor")
    if not placeholders:
        raise NotGenerated(what="this region", detail="it has no inputs: it is a constant")
    inputs = _buffers(placeholders, task.inputs if task else None, "input")
    outputs = _buffers(results, task.outputs if task else None, "output")
    if len({node.name for node in results}) != len(results):
        raise NotGenerated(what="this region", detail="two outputs are the same value")
    for buffer in (*inputs, *outputs):
        if buffer.elements == 0:
            raise NotGenerated(what="this region", detail=f"{buffer.name} has no elements")
    cut: list[fx.Node] = []
    for _ in range(_ATTEMPTS):
        try:
            return _with_cuts(module, placeholders, results, inputs, outputs, cut, language)
        except CutNeeded as need:
            if need.node in cut:
                raise NotGenerated(
                    what=need.node.name, detail="its reductions depend on each other in a circle"
                ) from need
            cut.append(need.node)
    raise NotGenerated(what="this region", detail="its reductions need too many intermediate buffers")


def _with_cuts(
    module: fx.GraphModule,
    placeholders: list[fx.Node],
    results: list[fx.Node],
    inputs: tuple[Buffer, ...],
    outputs: tuple[Buffer, ...],
    cut: list[fx.Node],
    language: str,
) -> Plan:
    order = {node: k for k, node in enumerate(module.graph.nodes)}
    held = {node: _contiguous(node, k) for k, node in enumerate(sorted(cut, key=order.__getitem__))}
    readable = {**dict(zip(placeholders, inputs, strict=True)), **held}
    targets = {**held, **dict(zip(results, outputs, strict=True))}  # a cut output is read back from the output itself
    for node, buffer in zip(results, outputs, strict=True):
        if node in held:
            readable[node] = buffer
    nests = []
    for group in _groups(sorted(targets, key=order.__getitem__), set(cut)):
        nests += _nests(group, targets, readable, language)
    workspaces = tuple(buffer for node, buffer in held.items() if node not in results)
    return Plan(inputs, outputs, workspaces, tuple(nests))


def _buffers(nodes: Iterable[fx.Node], specs: tuple[TensorSpec, ...] | None, kind: str) -> tuple[Buffer, ...]:
    made = []
    for position, node in enumerate(nodes):
        value = node.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        ctype_of(value.dtype)
        name = node.name if kind == "input" else f"out{position}"
        stride = tuple(int(s) for s in (specs[position].stride if specs else value.stride()))
        name = specs[position].name if specs and kind == "output" else name
        shape = shape_of(node)
        if any(step == 0 and extent > 1 for step, extent in zip(stride, shape, strict=True)):
            if kind == "output":
                raise NotGenerated(what=name, detail="it is an expanded tensor: its elements share memory")
            stride = dense(shape)  # an expanded input may come unexpanded, never the other way round
        made.append(Buffer(name, dtype, shape, stride, kind))
    return tuple(made)


def _contiguous(node: fx.Node, number: int) -> Buffer:
    shape = shape_of(node)
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return Buffer(f"between{number}", dtype, shape, dense(shape), "workspace")


def _groups(roots: list[fx.Node], cut: set[fx.Node]) -> list[list[fx.Node]]:
    """Roots that may share a nest: alignable shapes, and no root that reads a buffer the same nest fills."""
    groups: list[list[fx.Node]] = []
    for root in roots:
        needs = _ancestors(root) & cut
        for group in reversed(groups):
            if needs.intersection(group):
                groups.append([root])
                break
            if _aligned(root, group):
                group.append(root)
                break
        else:
            groups.append([root])
    return groups


def _ancestors(node: fx.Node) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        found = waiting.pop()
        if found not in seen:
            seen.add(found)
            waiting += found.all_input_nodes
    return seen


def _aligned(root: fx.Node, group: list[fx.Node]) -> bool:
    """Whether the shapes are equal, or one is the other with trailing dims as 1 or left out."""
    for other in group:
        small, large = sorted((shape_of(root), shape_of(other)), key=lambda s: (len(s), _count(s)))
        kept = 0
        while kept < len(small) and small[kept] == large[kept]:
            kept += 1
        if any(extent != 1 for extent in small[kept:]) or _count(small) * _count(large) == 0:
            return False
    return True


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _nests(
    group: list[fx.Node], targets: dict[fx.Node, Buffer], readable: dict[fx.Node, Buffer], language: str
) -> list[Nest]:
    """One nest for the group, or, where its loops don't fit together, one nest for each of its roots."""
    nest = _nest(group, targets, readable, language)
    if nest is not None:
        return [nest]
    if len(group) == 1:
        raise NotGenerated(what=group[0].name, detail="no order of loops fits its reductions")
    return [made for root in group for made in _nests([root], targets, readable, language)]


def _nest(
    group: list[fx.Node], targets: dict[fx.Node, Buffer], readable: dict[fx.Node, Buffer], language: str
) -> Nest | None:
    splits: dict[str, tuple[int, ...]] = {}
    columns: tuple[Var, ...] | None = None
    for _ in range(_ATTEMPTS):
        walker = Walker(readable, splits, columns, None, language)
        walker.roots = set(group)
        try:
            stores = tuple(_store(walker, root, group, targets[root]) for root in group)
        except SplitNeeded as need:
            _split(splits, need)
            columns = None
            continue
        nest = _arrange(walker, group, stores)
        if nest is None or columns == nest.columns or not nest.columns or not nest.reductions:
            return nest
        if columns is not None:
            return nest
        columns = nest.columns
    raise NotGenerated(what=group[0].name, detail="its index maps need too many splits")


def _split(splits: dict[str, tuple[int, ...]], need: SplitNeeded) -> None:
    name, factor, extent = need.var.name, need.factor, need.var.extent
    base, _, place = name.rpartition("_")
    if base in splits:
        factors = list(splits[base])
        factors[int(place) : int(place) + 1] = [extent // factor, factor]
        splits[base] = tuple(factors)
    else:
        splits[name] = (extent // factor, factor)


def _store(walker: Walker, root: fx.Node, group: list[fx.Node], buffer: Buffer) -> Store:
    shape = shape_of(root)
    index = tuple(walker.position(f"i{axis}", extent) for axis, extent in enumerate(shape))
    own = [v for axis, extent in enumerate(shape) for v in walker.variables(f"i{axis}", extent)]
    walker.inner = own[-1] if own else None
    parts = walker.segments(lambda box: walker.value(root, index, box))
    offset = Affine()
    for part, stride in zip(index, buffer.stride, strict=True):
        offset = offset + part * stride
    return Store(buffer, offset, parts)


def _arrange(walker: Walker, group: list[fx.Node], stores: tuple[Store, ...]) -> Nest | None:
    """Rows and columns for these stores; None when the group doesn't fit one nest. Raises `CutNeeded`."""
    main = max(group, key=lambda node: _count(shape_of(node)))
    own = [v for axis, extent in enumerate(shape_of(main)) for v in walker.variables(f"i{axis}", extent)]
    reductions = _reductions([expr for store in stores for _, expr in store.parts])
    if not reductions:
        if any(store.offset.variables != stores[0].offset.variables for store in stores):
            return None
        return Nest(tuple(own), (), stores, ())
    widest = max((reduction.variables for reduction in reductions), key=len)
    nodes = {id(expr): key[1] for key, expr in walker.interned.items() if key[0] == "reduce"}
    for reduction in reductions:
        if reduction.variables - widest:
            return None
        if reduction.variables != widest:
            raise CutNeeded(nodes[id(reduction)])
    if widest - set(own):
        return None
    rows = tuple(v for v in own if v in widest)
    columns = tuple(v for v in own if v not in widest)
    for reduction in reductions:
        _refuse_leading(reduction, rows)
    checked = []
    for store in stores:
        if any(v not in columns for box, _ in store.parts for v, _ in box):
            return None  # only columns can be cut into segments
        varying = store.offset.variables | {v for _, expr in store.parts for v in expr.variables}
        inside = varying & set(columns)
        if set(rows) - store.offset.variables or (inside and inside != set(columns)):
            return None
        checked.append(Store(store.buffer, store.offset, store.parts, row_only=not inside))
    if not columns:
        columns = reductions[0].over
    return Nest(rows, columns, tuple(checked), reductions)


def _refuse_leading(reduction: Reduce, rows: tuple[Var, ...]) -> None:
    """Raises `NotGenerated` where rows lie closer together than the values of one: row by row would be slow there."""
    for expr in walk(*(part for _, part in reduction.parts)):
        if isinstance(expr, Load):
            inside = [abs(c) for v, c in expr.offset.terms if v in reduction.over]
            across = [abs(c) for v, c in expr.offset.terms if v in rows]
            if inside and across and min(inside) > min(across):
                raise NotGenerated(what=reduction.name, detail="it runs over a leading dim, column by column")


def _reductions(roots: list[Expr]) -> tuple[Reduce, ...]:
    """Every reduction under `roots`, inner ones first."""
    found: dict[int, Reduce] = {}

    def visit(exprs: list[Expr]) -> None:
        for expr in walk(*exprs):
            if isinstance(expr, Reduce) and id(expr) not in found:
                visit([part for _, part in expr.parts])
                found[id(expr)] = expr

    visit(roots)
    return tuple(sorted(found.values(), key=lambda reduction: reduction.level))
