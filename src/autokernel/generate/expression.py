"""Scalar expressions of a region: what one element of an output is, in terms of loads and reductions.

Expressions are interned (equal ones are the same object), so common subexpressions are found by identity. C types:
`float`, `double`, `int64_t`, `int32_t`, `bool`; half precisions are computed in float and exist in loads and stores
only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autokernel.generate.affine import Affine, Var

Box = tuple[tuple[Var, tuple[int, int]], ...]  # ranges of the variables that are cut into segments, sorted


@dataclass(frozen=True, eq=False)
class Expr:
    ctype: str
    name: str  # of the graph's node, a hint for the emitter
    variables: frozenset[Var]  # loop variables its value depends on
    level: int  # how many reductions must be finished, one after another, before it can be computed
    weight: int  # rough cost of computing it again, in arithmetic operations


@dataclass(frozen=True, eq=False)
class Const(Expr):
    value: float | int | bool = 0


@dataclass(frozen=True, eq=False)
class Load(Expr):
    tensor: str = ""
    offset: Affine = field(default_factory=Affine)  # in elements
    checked: tuple[Expr, ...] = ()  # the dynamic indices that the offset uses


@dataclass(frozen=True, eq=False)
class Position(Expr):
    """An index used as a value (`arange`)."""

    index: Affine = field(default_factory=Affine)


@dataclass(frozen=True, eq=False)
class Op(Expr):
    template: str = ""  # C++ with {0}, {1}, ... for the arguments
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False)
class Pick(Expr):
    """`first` where `index < bound`, else `second`: a `cat` along a dim that isn't the innermost loop's."""

    index: Affine = field(default_factory=Affine)
    bound: int = 0
    first: Expr | None = None
    second: Expr | None = None


@dataclass(frozen=True, eq=False)
class Checked(Expr):
    """An index read from a tensor; the kernel reports one outside 0 ≤ index < extent instead of using it."""

    var: Var | None = None
    value: Expr | None = None


@dataclass(frozen=True, eq=False)
class Reduce(Expr):
    """`kind` over `over`, row by row. `parts`: the argument on each segment of the reduced range."""

    kind: str = "sum"
    over: tuple[Var, ...] = ()
    parts: tuple[tuple[Box, Expr], ...] = ()


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct operands. A reduction's argument is not one: it is computed in a pass of its own."""
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Load):
        return expr.checked
    if isinstance(expr, Pick):
        assert expr.first is not None and expr.second is not None
        return expr.first, expr.second
    if isinstance(expr, Checked):
        assert expr.value is not None
        return (expr.value,)
    return ()


def walk(*roots: Expr) -> list[Expr]:
    """Every expression under `roots`, operands before users, each once; stops at reductions."""
    seen: dict[int, Expr] = {}

    def visit(expr: Expr) -> None:
        if id(expr) not in seen:
            for child in children(expr):
                visit(child)
            seen[id(expr)] = expr

    for root in roots:
        visit(root)
    return list(seen.values())
