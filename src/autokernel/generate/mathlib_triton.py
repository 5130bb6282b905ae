"""The functions of triton_math.py that a piece of Triton uses, in the order of that file."""

from __future__ import annotations

import ast
import functools
import re
from importlib import resources


@functools.cache
def _functions() -> dict[str, tuple[frozenset[str], str]]:
    """name → (functions it needs, text)"""
    text = resources.files("autokernel.generate").joinpath("triton_math.py").read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    names = {node.name for node in found}
    lines = text.splitlines()
    pieces = {}
    for node in found:
        first = min(decorator.lineno for decorator in node.decorator_list) - 1
        body = "\n".join(lines[first : node.end_lineno])
        pieces[node.name] = (frozenset(set(re.findall(r"\w+", body)) & names - {node.name}), body)
    return pieces


def functions_for(code: str) -> list[str]:
    """The text of every function whose name occurs in `code`, and of those they need."""
    functions = _functions()
    waiting = list(set(re.findall(r"\w+", code)) & set(functions))
    chosen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in chosen:
            chosen.add(name)
            waiting += functions[name][0]
    return [text for name, (_, text) in functions.items() if name in chosen]


def reserved() -> frozenset[str]:
    """Names that a kernel's own variables must leave alone."""
    return frozenset(_functions())
