"""Small pieces of C++ text: names, literals, indices, the types values have in memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autokernel.generate.affine import Affine, Var
from autokernel.generate.expression import Const, Reduce

STORAGE = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "uint16_t",
    "float16": "uint16_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
_TAKEN = frozenset(
    """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register return short signed sizeof static
    struct switch template this throw true try typedef typename union unsigned using virtual void volatile while xor
    threads launch lane row row0 row1 row2 column column0 column1 column2 column3 block first bad main std bits fused
    NAN INFINITY unix linux
    """.split()  # noqa: SIM905 - words of C++ read best as words
)


class Names:
    """C++ identifiers in one scope: what the model calls a thing, made unique.

    An inner scope may reuse names of its siblings, but none of the enclosing scope, whichever came first.
    """

    def __init__(self, outer: Names | None = None) -> None:
        self.outer = outer
        self.used: set[str] = set() if outer else set(_TAKEN)
        self.inside: set[str] = set()

    def _free(self, name: str) -> bool:
        if name in self.used or name in self.inside:
            return False
        return all(name not in scope.used for scope in self._around())

    def _around(self) -> Iterator[Names]:
        scope = self.outer
        while scope is not None:
            yield scope
            scope = scope.outer

    def fresh(self, wish: str) -> str:
        base = re.sub(r"\W+", "_", wish, flags=re.ASCII).strip("_") or "value"
        if base[0].isdigit() or base.startswith(("simd_", "nan_")):
            base = f"v_{base}"
        name, count = base, 1
        while not self._free(name):
            count += 1
            name = f"{base}_{count}"
        self.used.add(name)
        for scope in self._around():
            scope.inside.add(name)
        return name


def literal(const: Const) -> str:
    value = const.value
    if const.ctype == "bool":
        return "true" if value else "false"
    if const.ctype.startswith("int"):
        return "INT64_MIN" if value == -(2**63) else f"({value})" if value < 0 else str(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = repr(float(value)) + ("f" if const.ctype == "float" else "")
    return f"({text})" if text.startswith("-") else text


def index_text(affine: Affine, text: Mapping[Var, str]) -> str:
    parts = [text[v] if c == 1 else f"{c} * {text[v]}" for v, c in affine.terms if text[v] != "0"]
    if affine.constant or not parts:
        parts.append(str(affine.constant))
    return " + ".join(parts).replace("+ -", "- ")


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


_SIGNS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


# --- reductions -----------------------------------------------------------------------------------------------------


def accumulator_type(reduction: Reduce) -> str:
    return "int" if reduction.ctype == "bool" else reduction.ctype


def is_floating(reduction: Reduce) -> bool:
    return reduction.ctype in ("float", "double")


def initial(reduction: Reduce) -> str:
    fixed = {"sum": "0", "prod": "1", "any": "0", "all": "1"}.get(reduction.kind)
    if fixed is not None:
        return fixed
    if is_floating(reduction):
        return "-INFINITY" if reduction.kind == "max" else "INFINITY"
    limit = {"int64_t": "INT64", "int32_t": "INT32", "bool": "INT32"}[reduction.ctype]
    return f"{limit}_{'MIN' if reduction.kind == 'max' else 'MAX'}"


def accumulate(reduction: Reduce, total: str, value: str) -> tuple[str, str]:
    """The OpenMP reduction and the statement that adds one value (a name, for max and min)."""
    kind = reduction.kind
    if kind in ("sum", "prod"):
        sign = "+" if kind == "sum" else "*"
        return sign, f"{total} {sign}= {value};"
    if kind in ("any", "all"):
        sign = "|" if kind == "any" else "&"
        return sign, f"{total} {sign}= static_cast<int>({value});"
    sign = ">" if kind == "max" else "<"
    if not is_floating(reduction):
        return kind, f"{total} = {value} {sign} {total} ? {value} : {total};"
    return f"nan_{kind}", f"{total} = {value} {sign} {total} || {value} != {value} ? {value} : {total};"


def join(reduction: Reduce, left: str, right: str) -> str:
    """One value from two accumulators (names or joined values)."""
    kind = reduction.kind
    if kind in ("sum", "prod", "any", "all"):
        return f"({left} {_SIGNS[kind]} {right})"
    sign = ">" if kind == "max" else "<"
    nan = f" || {left} != {left}" if is_floating(reduction) else ""
    return f"({left} {sign} {right}{nan} ? {left} : {right})"
