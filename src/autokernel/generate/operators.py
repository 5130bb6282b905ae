"""The pointwise operators: one row each. `{0}`, `{1}`, … are the operands, already converted and parenthesised.

A row is `float template | double template | integer template`, or one template for all. `simd_…` functions come from
vector_math.h; the others are the C++ library's. NaN follows PyTorch: maximum, minimum, clamp and relu keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

Rule = Literal["same", "compare", "where", "test"]


@dataclass(frozen=True)
class Row:
    """`rule`: what the operands are converted to. same: the result's type; compare: their common type;
    where: bool, then the result's type; test: the operand's own type."""

    floating: str
    double: str
    integer: str | None
    rule: Rule = "same"
    weight: int = 1


def _row(
    floating: str, double: str | None = None, integer: str | None = "", rule: Rule = "same", weight: int = 1
) -> Row:
    return Row(floating, double or floating, floating if integer == "" else integer, rule, weight)


def _math(name: str, weight: int = 12) -> Row:
    """Ours in float, the library's in double."""
    return Row(f"simd_{name}({{0}})", f"std::{name}({{0}})", None, "same", weight)


def _library(name: str, weight: int = 25) -> Row:
    return Row(f"std::{name}({{0}})", f"std::{name}({{0}})", None, "same", weight)


def _compare(sign: str) -> Row:
    return _row(f"({{0}} {sign} {{1}})", rule="compare")


_SIGMOID = Row("simd_sigmoid({0})", "1.0 / (1.0 + std::exp(-{0}))", None, "same", 16)

TABLE: dict[str, Row] = {
    "add": _row("({0} + {1})"),
    "sub": _row("({0} - {1})"),
    "mul": _row("({0} * {1})"),
    "div": _row("({0} / {1})", integer=None, weight=4),
    "neg": _row("(-{0})"),
    "abs": _row("std::abs({0})"),
    "reciprocal": _row("(1 / {0})", integer=None, weight=4),
    "sqrt": _row("std::sqrt({0})", integer=None, weight=5),
    "rsqrt": _row("(1 / std::sqrt({0}))", integer=None, weight=9),
    "exp": _math("exp"),
    "exp2": _library("exp2"),
    "expm1": _math("expm1"),
    "log": _math("log"),
    "log2": _library("log2"),
    "log10": _library("log10"),
    "log1p": _math("log1p", 16),
    "sin": _library("sin"),
    "cos": _library("cos"),
    "tan": _library("tan"),
    "sinh": _library("sinh"),
    "cosh": _library("cosh"),
    "asin": _library("asin"),
    "acos": _library("acos"),
    "atan": _library("atan"),
    "tanh": _math("tanh", 20),
    "erf": _math("erf", 22),
    "erfc": _library("erfc"),
    "sigmoid": _SIGMOID,
    "floor": _library("floor", 1),
    "ceil": _library("ceil", 1),
    "trunc": _library("trunc", 1),
    "round": _library("nearbyint", 1),
    "relu": _row("({0} < 0 ? 0 : {0})"),
    "sign": _row("(({0} > 0) - ({0} < 0))", integer="(({0} > 0) - ({0} < 0))"),
    "maximum": _row("({0} > {1} || {0} != {0} ? {0} : {1})", integer="({0} > {1} ? {0} : {1})"),
    "minimum": _row("({0} < {1} || {0} != {0} ? {0} : {1})", integer="({0} < {1} ? {0} : {1})"),
    "clamp_min": _row("({0} < {1} ? {1} : {0})"),
    "clamp_max": _row("({0} > {1} ? {1} : {0})"),
    "pow": _row("std::pow({0}, {1})", integer=None, weight=40),
    "atan2": _row("std::atan2({0}, {1})", integer=None, weight=40),
    "hypot": _row("std::hypot({0}, {1})", integer=None, weight=20),
    "fmod": _row("std::fmod({0}, {1})", integer=None, weight=20),
    "copysign": _row("std::copysign({0}, {1})", integer=None),
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "isnan": _row("({0} != {0})", rule="test"),
    "isinf": _row("(std::abs({0}) == INFINITY)", integer="false", rule="test"),
    "logical_and": _row("({0} != 0 && {1} != 0)", rule="compare"),
    "logical_or": _row("({0} != 0 || {1} != 0)", rule="compare"),
    "logical_xor": _row("(({0} != 0) != ({1} != 0))", rule="compare"),
    "logical_not": _row("({0} == 0)", rule="test"),
    "bitwise_and": Row("", "", "({0} & {1})"),
    "bitwise_or": Row("", "", "({0} | {1})"),
    "bitwise_xor": Row("", "", "({0} ^ {1})"),
    "bitwise_not": Row("", "", "(~{0})"),
    "where": _row("({0} ? {1} : {2})", rule="where"),
    "leaky_relu": _row("({0} > 0 ? {0} : {0} * {1})", integer=None),
    "elu": Row(
        "({0} > 0 ? {0} * {2} : simd_expm1({0} * {3}) * ({1} * {2}))",
        "({0} > 0 ? {0} * {2} : std::expm1({0} * {3}) * ({1} * {2}))",
        None,
        weight=16,
    ),
}

DEFAULTS: dict[str, tuple[float, ...]] = {"leaky_relu": (0.01,), "elu": (1.0, 1.0, 1.0), "hardtanh": (-1.0, 1.0)}
_OVERLOADS: dict[str, Callable[[fx.Node], str | None]] = {
    "div": lambda node: "div" if node.kwargs.get("rounding_mode") is None else None,
    "round": lambda node: "round" if not node.kwargs.get("decimals") else None,
}


def row_of(node: fx.Node) -> tuple[str, tuple[Any, ...]] | None:
    """The table's key for a pointwise node and its operands in the template's order; None when there is no row."""
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if name == "clamp":
        return "clamp", node.args
    if name == "hardtanh":
        return "clamp", (*node.args, *DEFAULTS[name][len(node.args) - 1 :])
    if name == "bitwise_not":
        return ("logical_not" if node.meta["val"].dtype == torch.bool else "bitwise_not"), node.args
    chosen = _OVERLOADS.get(name, lambda _: name)(node)
    if chosen is None or chosen not in TABLE:
        return None
    args = node.args
    if name in DEFAULTS:
        args = (*args, *DEFAULTS[name][len(args) - 1 :])
    if any(key not in ("rounding_mode", "decimals", "dtype") for key in node.kwargs):
        return None
    return chosen, args
