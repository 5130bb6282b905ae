"""A kernel file loaded into this process.

This is the user's own decision about a kernel that was judged: nothing here is sandboxed. The C++ is built (or found in
the content-addressed cache) by the language first, so that a missing compiler is the named error it should be. Triton
is checked only: it compiles itself at the first launch, and keeps the result in the user's own Triton cache.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import linecache
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
    _prepare(source, name)
    module = types.ModuleType(name)
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # Triton reads a kernel's text
    sys.modules[name] = module
    exec(compile(source, file, "exec"), module.__dict__)
    launch: Callable[..., Any] | None = module.__dict__.get("launch")
    if not callable(launch):
        raise KernelInvalid(path=name, detail="it defines no `launch`")
    return launch


def _prepare(source: str, name: str) -> None:
    kind = _language(source, name)
    language = get_language(kind)
    if kind != "triton":
        language.compile(source)
        sys.modules.setdefault(_LOADER, importlib.import_module(f"autokernel.languages.cpp.{_LOADER}"))
        return
    fatal = [finding for finding in language.check(source) if finding.fatal]
    if fatal:
        raise KernelInvalid(path=name, detail=f"line {fatal[0].line}: {fatal[0].message}")


def jitted(source: str) -> frozenset[str]:
    """Names of the functions of a kernel file that Triton compiles, as the profiler shows those that are launched."""
    return frozenset(
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and any(_is_jit(decorator) for decorator in node.decorator_list)
    )


def _is_jit(decorator: ast.expr) -> bool:
    """`@triton.jit`, `@triton.jit(...)`, `@jit`."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) == "jit"


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
