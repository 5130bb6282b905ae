"""Index arithmetic: integer-linear forms over loop variables, and the splits that keep `reshape` linear.

An index into one dim of a tensor is `constant + Σ coefficient · variable`. Every index map of the lowered graph keeps
that form, except a `reshape` that cuts a variable's range in two: it raises `SplitNeeded`, the variable is replaced by
two (`v = factor · v_outer + v_inner`), and the walk starts again. What no split makes linear is `NotGenerated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autokernel.errors import NotGenerated


@dataclass(frozen=True, order=True)
class Var:
    """A loop variable, or (`dynamic`) an index read from a tensor, which ranges over `extent` once checked."""

    name: str
    extent: int
    dynamic: bool = False


Bounds = Mapping[Var, tuple[int, int]]  # half-open; a variable that is not in it has its whole range


class SplitNeeded(Exception):
    """`var` must become two variables, the inner one of extent `factor`."""

    def __init__(self, var: Var, factor: int) -> None:
        self.var, self.factor = var, factor
        super().__init__(f"{var.name} by {factor}")


@dataclass(frozen=True)
class Affine:
    terms: tuple[tuple[Var, int], ...] = ()  # sorted by variable, no zero coefficients
    constant: int = 0

    @staticmethod
    def of(terms: Mapping[Var, int], constant: int = 0) -> Affine:
        return Affine(tuple(sorted((v, c) for v, c in terms.items() if c)), constant)

    @staticmethod
    def var(var: Var) -> Affine:
        return Affine(((var, 1),))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        terms = dict(self.terms)
        for v, c in other.terms:
            terms[v] = terms.get(v, 0) + c
        return Affine.of(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Affine:
        return Affine.of({v: c * factor for v, c in self.terms}, self.constant * factor)

    @property
    def variables(self) -> frozenset[Var]:
        return frozenset(v for v, _ in self.terms)

    def coefficient(self, var: Var) -> int:
        return dict(self.terms).get(var, 0)

    def only(self, variables: Iterable[Var]) -> Affine:
        """The terms in `variables`, without the constant."""
        chosen = frozenset(variables)
        return Affine(tuple((v, c) for v, c in self.terms if v in chosen))

    def without(self, variables: Iterable[Var]) -> Affine:
        chosen = frozenset(variables)
        return Affine(tuple((v, c) for v, c in self.terms if v not in chosen), self.constant)

    def substitute(self, values: Mapping[Var, Affine]) -> Affine:
        result = Affine((), self.constant)
        for v, c in self.terms:
            result = result + (values[v] * c if v in values else Affine(((v, c),)))
        return result

    def range(self, bounds: Bounds) -> tuple[int, int]:
        """Smallest and largest value, inclusive."""
        low = high = self.constant
        for v, c in self.terms:
            first, end = bounds.get(v, (0, v.extent))
            ends = (c * first, c * (end - 1))
            low, high = low + min(ends), high + max(ends)
        return low, high

    def divide(self, size: int, bounds: Bounds) -> tuple[Affine, Affine]:
        """Quotient and remainder by `size`, both linear. Raises `SplitNeeded` or `NotGenerated`."""
        quotient = Affine.of({v: c // size for v, c in self.terms if c % size == 0})
        rest = Affine(tuple((v, c) for v, c in self.terms if c % size), self.constant)
        low, high = rest.range(bounds)
        whole = low // size
        if high - whole * size < size:
            return quotient + whole, rest + (-whole * size)
        for v, c in rest.terms:
            factor, extra = divmod(size, abs(c))
            if not v.dynamic and not extra and 1 < factor < v.extent and v.extent % factor == 0:
                raise SplitNeeded(v, factor)
        raise NotGenerated(what="this reshape", detail=f"no linear index splits {self} by {size}")

    def __str__(self) -> str:
        parts = [v.name if c == 1 else f"{c} * {v.name}" for v, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def flatten(index: tuple[Affine, ...], shape: tuple[int, ...]) -> Affine:
    """Row-major position of an index."""
    position = Affine()
    for part, extent in zip(index, shape, strict=True):
        position = position * extent + part
    return position


def unflatten(position: Affine, shape: tuple[int, ...], bounds: Bounds) -> tuple[Affine, ...]:
    """The index at a row-major position. Raises `SplitNeeded` or `NotGenerated`."""
    index: list[Affine] = []
    for axis in reversed(range(1, len(shape))):
        if shape[axis] == 1:
            index.append(Affine())
            continue
        position, part = position.divide(shape[axis], bounds)
        index.append(part)
    if shape:
        index.append(position)
    return tuple(reversed(index))


def reshape_index(
    index: tuple[Affine, ...], shape: tuple[int, ...], to: tuple[int, ...], bounds: Bounds
) -> tuple[Affine, ...]:
    """Where element `index` of a tensor of `shape` lies in the same tensor seen as `to`.

    Works group by group (runs of dims with equal products), so that dims that a reshape leaves alone are never
    multiplied into others.
    """
    result: list[Affine] = []
    here = there = 0
    while here < len(shape) or there < len(to):
        from_group: list[int] = []
        to_group: list[int] = []
        from_size = to_size = 1
        while True:
            if from_size == to_size and from_group and to_group:
                break
            if from_size <= to_size and here < len(shape):
                from_group.append(here)
                from_size *= shape[here]
                here += 1
            elif there < len(to):
                to_group.append(there)
                to_size *= to[there]
                there += 1
            else:
                break
        part = flatten(tuple(index[axis] for axis in from_group), tuple(shape[axis] for axis in from_group))
        result += unflatten(part, tuple(to[axis] for axis in to_group), bounds)
    return tuple(result)
