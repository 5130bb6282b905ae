"""Small pieces of Triton text: names, literals, types, and how reductions begin, accumulate and end."""

from __future__ import annotations

import builtins
import keyword
import math
import re

from autokernel.errors import NotGenerated
from autokernel.generate.expression import Const, Reduce
from autokernel.generate.mathlib_triton import reserved

TYPES = {"float": "tl.float32", "double": "tl.float64", "int64_t": "tl.int64", "int32_t": "tl.int32", "bool": "tl.int1"}
_TAKEN = frozenset(
    "torch triton tl libdevice launch arranged programs LANGUAGE SERVES tile start row column row_inside inside".split()  # noqa: SIM905
)


class Names:
    """Python identifiers in one function: what the model calls a thing, made unique."""

    def __init__(self) -> None:
        self.used = set(_TAKEN) | set(reserved())

    def fresh(self, wish: str) -> str:
        base = re.sub(r"\W+", "_", wish, flags=re.ASCII).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base) or hasattr(builtins, base):
            base = f"{base}_" if not base[0].isdigit() else f"v_{base}"
        name, count = base, 1
        while name in self.used:
            count += 1
            name = f"{base}_{count}"
        self.used.add(name)
        return name


def literal(const: Const) -> str:
    value = const.value
    if const.ctype == "bool":
        return f"tl.full((), {int(value)}, tl.int1)"
    if const.ctype.startswith("int"):
        return f"({value})" if value < 0 else str(value)
    if math.isnan(value):
        text = 'float("nan")'
    elif math.isinf(value):
        text = 'float("inf")' if value > 0 else 'float("-inf")'
    else:
        text = f"({float(value)!r})" if math.copysign(1, value) < 0 else repr(float(value))
    # a literal is taken for float32 where nothing beside it is a float64
    return f"tl.full((), {text}, tl.float64)" if const.ctype == "double" else text


def neutral(reduction: Reduce) -> str:
    """What changes nothing when it is added, multiplied or compared."""
    floating = reduction.ctype in ("float", "double")
    fixed = {"sum": "0", "prod": "1", "any": "0", "all": "1"}.get(reduction.kind)
    if fixed is not None:
        return f"{fixed}.0" if floating else fixed
    if floating:
        return 'float("-inf")' if reduction.kind == "max" else 'float("inf")'
    low, high = {"int64_t": (-(2**63), 2**63 - 1)}.get(reduction.ctype, (-(2**31), 2**31 - 1))
    return str(low if reduction.kind == "max" else high)


def value_type(reduction: Reduce) -> str:
    """What is accumulated; truth values as integers."""
    return "tl.int32" if reduction.ctype == "bool" else TYPES[reduction.ctype]


def folded(reduction: Reduce, value: str, axis: str) -> str:
    """A tile's values as one for each row; `axis`: "0", or "1, keep_dims=True"."""
    floating = reduction.ctype in ("float", "double")
    if reduction.kind == "sum":
        return f"tl.sum({value}, {axis})"
    if reduction.kind == "prod":
        return f"tl.reduce({value}, {_with(axis, 'times')})"
    if floating:
        return f"tl.reduce({value}, {_with(axis, f'nan_{reduction.kind}')})"
    if reduction.kind in ("max", "any"):
        return f"tl.max({value}, {axis})"
    if reduction.kind in ("min", "all"):
        return f"tl.min({value}, {axis})"
    raise NotGenerated(what=reduction.name, detail=f"a reduction of kind {reduction.kind}")


def _with(axis: str, function: str) -> str:
    first, comma, rest = axis.partition(", ")
    return f"{first}, {function}{comma}{rest}"


def joined(reduction: Reduce, left: str, right: str) -> str:
    """One value from two."""
    if reduction.kind in ("sum", "prod"):
        return f"{left} {'+' if reduction.kind == 'sum' else '*'} {right}"
    larger = reduction.kind in ("max", "any")
    if reduction.ctype in ("float", "double"):
        return f"nan_{reduction.kind}({left}, {right})"
    return f"tl.{'maximum' if larger else 'minimum'}({left}, {right})"


def strip(text: str) -> str:
    """Without the parentheses around the whole, if they are a pair."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
