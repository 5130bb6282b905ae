"""Softmax in one pass: which reductions may run together, the sum rescaled whenever the maximum grows.

Of Σ e^(x - m) with m = max x, each block adds Σ e^(x - m') under the maximum m' so far, and what was added before is
multiplied by e^(m - m') (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). The block's
maximum is taken first, so that an element costs one exponential.
"""

from __future__ import annotations

from dataclasses import dataclass

from autokernel.generate.expression import Expr, Op, Reduce, walk
from autokernel.generate.plan import Nest


@dataclass(frozen=True)
class Online:
    """`total` is Σ e^(`value` - `shift`); `shift` is `largest`, or follows from nothing else of the row."""

    largest: Reduce
    total: Reduce
    value: Expr
    shift: Expr


def online(nest: Nest) -> Online | None:
    """The maximum and the sum of a nest that fit the pattern; None where they don't, or others are in the way."""
    first = [r for r in nest.reductions if r.level == 1]
    second = [r for r in nest.reductions if r.level == 2]
    if len(first) != 1 or len(second) != 1 or any(s.level < 2 and not s.row_only for s in nest.stores):
        return None
    largest, total = first[0], second[0]
    kinds = (largest.kind, total.kind, largest.ctype, total.ctype)
    if kinds != ("max", "sum", "float", "float") or len(largest.parts) != 1 or len(total.parts) != 1:
        return None
    power = total.parts[0][1]
    if largest.over != total.over or not isinstance(power, Op) or power.template != "@exp({0})":
        return None
    difference = power.args[0]
    if not isinstance(difference, Op) or difference.template != "({0} - {1})":
        return None
    value, shift = difference.args
    if value is not largest.parts[0][1] or shift.variables - largest.variables or shift.level != 1:
        return None
    if any(isinstance(expr, Reduce) and expr is not largest for expr in walk(shift)):
        return None
    return Online(largest, total, value, shift)
