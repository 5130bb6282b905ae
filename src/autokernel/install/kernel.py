"""A kernel file loaded into this process.

This is the user's own decision about a kernel that was judged: nothing here is sandboxed. The C++ is built (or found in
the content-addressed cache) by the language first, so that a missing compiler is the named error it should be.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from autokernel.errors import KernelInvalid
from autokernel.languages import get_language

_LOADER = "autokernel_loader"  # what kernel files import; exported packages carry a copy of the same file


@functools.lru_cache(maxsize=1024)
def load(source: str) -> Callable[..., Any]:
    """`launch` of a kernel file's text. Raises UnknownName, NoCompiler, CompileFailure, KernelInvalid.

    The same text gives the same function: its module is run once.
    """
    name = f"autokernel_kernel_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    get_language(_language(source, name)).compile(source)
    sys.modules.setdefault(_LOADER, importlib.import_module(f"autokernel.languages.cpp.{_LOADER}"))
    module = types.ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    launch: Callable[..., Any] | None = module.__dict__.get("launch")
    if not callable(launch):
        raise KernelInvalid(path=name, detail="it defines no `launch`")
    return launch


def _language(source: str, name: str) -> str:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise KernelInvalid(path=name, detail=f"line {error.lineno}: {error.msg}") from error
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        if any(isinstance(target, ast.Name) and target.id == "LANGUAGE" for target in statement.targets):
            return str(statement.value.value)
    raise KernelInvalid(path=name, detail="it has no LANGUAGE")
