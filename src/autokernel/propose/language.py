"""Which language a kernel file is in, by its own LANGUAGE."""

from __future__ import annotations

import ast


def language_of(source: str) -> str:
    """The value of the module-level literal LANGUAGE; "" where there is none (the judge then says what is missing)."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return ""
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            named = any(isinstance(target, ast.Name) and target.id == "LANGUAGE" for target in statement.targets)
            if named and isinstance(statement.value.value, str):
                return statement.value.value
    return ""
