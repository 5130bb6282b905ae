"""The pointwise operators in Triton: one row for each row of `operators.TABLE`, under the same key.

`{0}`, `{1}`, … are the operands, already converted; `{T}` is the result's type. What begins with `@` is the schedule's
to choose (`@exp`, `@log`, `@div`: exact or fast); `exact_…` functions come from triton_math.py. Functions of libdevice
compile for every GPU but don't run in Triton's interpreter; those are sin, cos, tan, sinh, cosh, asin, acos, atan,
atan2, erfc, pow, hypot, fmod, copysign, round, and expm1, log1p, log2, log10 and tanh in double.
"""

from __future__ import annotations

from autokernel.generate.operators import Row, Rule

_ANY = "propagate_nan=tl.PropagateNan.ALL"


def _row(
    floating: str, double: str | None = None, integer: str | None = "", rule: Rule = "same", weight: int = 1
) -> Row:
    return Row(floating, double or floating, floating if integer == "" else integer, rule, weight)


def _library(name: str, count: int = 1, weight: int = 25) -> Row:
    text = f"libdevice.{name}({', '.join(f'{{{k}}}' for k in range(count))})"
    return Row(text, text, None, "same", weight)


def _ours(name: str, weight: int, double: str = "") -> Row:
    return Row(f"exact_{name}({{0}})", double or f"libdevice.{name}({{0}})", None, "same", weight)


def _compare(sign: str) -> Row:
    return _row(f"({{0}} {sign} {{1}})", rule="compare")


TRITON: dict[str, Row] = {
    "add": _row("({0} + {1})"),
    "sub": _row("({0} - {1})"),
    "mul": _row("({0} * {1})"),
    "div": _row("@div({0}, {1})", "({0} / {1})", integer=None, weight=4),
    "neg": _row("(-{0})"),
    "abs": _row("tl.abs({0})"),
    "reciprocal": _row("@div(1.0, {0})", "(1.0 / {0})", integer=None, weight=4),
    "sqrt": _row("tl.sqrt_rn({0})", "tl.sqrt({0})", integer=None, weight=5),
    "rsqrt": _row("tl.rsqrt({0})", integer=None, weight=9),
    "exp": Row("@exp({0})", "tl.exp({0})", None, weight=12),
    "exp2": _row("tl.exp2({0})", integer=None, weight=12),
    "expm1": _ours("expm1", 14),
    "log": Row("@log({0})", "tl.log({0})", None, weight=12),
    "log2": Row("(exact_log({0}) * 1.4426950408889634)", "libdevice.log2({0})", None, weight=14),
    "log10": Row("(exact_log({0}) * 0.4342944819032518)", "libdevice.log10({0})", None, weight=14),
    "log1p": _ours("log1p", 16),
    "sin": _library("sin"),
    "cos": _library("cos"),
    "tan": _library("tan"),
    "sinh": _library("sinh"),
    "cosh": _library("cosh"),
    "asin": _library("asin"),
    "acos": _library("acos"),
    "atan": _library("atan"),
    "tanh": _ours("tanh", 20),
    "erf": _row("tl.erf({0})", integer=None, weight=22),
    "erfc": _library("erfc"),
    "sigmoid": Row("@div(1.0, 1.0 + @exp(-{0}))", "(1.0 / (1.0 + tl.exp(-{0})))", None, weight=16),
    "floor": _row("tl.floor({0})", integer=None),
    "ceil": _row("tl.ceil({0})", integer=None),
    "trunc": _row("tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))", integer=None),
    "round": _library("nearbyint", weight=1),
    "relu": _row("tl.where({0} < 0, 0.0, {0})", integer="tl.where({0} < 0, 0, {0})"),
    "sign": _row("(({0} > 0).to({T}) - ({0} < 0).to({T}))"),
    "maximum": _row(f"tl.maximum({{0}}, {{1}}, {_ANY})", integer="tl.maximum({0}, {1})"),
    "minimum": _row(f"tl.minimum({{0}}, {{1}}, {_ANY})", integer="tl.minimum({0}, {1})"),
    "clamp_min": _row("tl.where({0} < {1}, {1}, {0})"),
    "clamp_max": _row("tl.where({0} > {1}, {1}, {0})"),
    "pow": _library("pow", 2, 40),
    "atan2": _library("atan2", 2, 40),
    "hypot": _library("hypot", 2, 20),
    "fmod": _library("fmod", 2, 20),
    "copysign": _library("copysign", 2, 1),
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "isnan": _row("({0} != {0})", rule="test"),
    "isinf": _row('(tl.abs({0}) == float("inf"))', integer="({0} != {0})", rule="test"),
    "logical_and": _row("(({0} != 0) & ({1} != 0))", rule="compare"),
    "logical_or": _row("(({0} != 0) | ({1} != 0))", rule="compare"),
    "logical_xor": _row("(({0} != 0) != ({1} != 0))", rule="compare"),
    "logical_not": _row("({0} == 0)", rule="test"),
    "bitwise_and": Row("", "", "({0} & {1})"),
    "bitwise_or": Row("", "", "({0} | {1})"),
    "bitwise_xor": Row("", "", "({0} ^ {1})"),
    "bitwise_not": Row("", "", "(~{0})"),
    "where": _row("tl.where({0}, {1}, {2})", rule="where"),
    "leaky_relu": _row("tl.where({0} > 0, {0}, {0} * {1})", integer=None),
    "elu": Row(
        "tl.where({0} > 0, {0} * {2}, exact_expm1({0} * {3}) * ({1} * {2}))",
        "tl.where({0} > 0, {0} * {2}, libdevice.expm1({0} * {3}) * ({1} * {2}))",
        None,
        weight=16,
    ),
}
