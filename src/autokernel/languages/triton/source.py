"""Reading a Triton kernel file without running it: LANGUAGE, `launch`, the kernels, imports; by ast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autokernel.languages import Finding

_QUIET = frozenset({"torch", "triton", "math", "functools", "__future__", "typing"})


def findings(text: str) -> tuple[Finding, ...]:
    """What is wrong (fatal) or unusual (not fatal) with a kernel file; nothing of it is run."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return (Finding(error.lineno or 1, f"syntax error: {error.msg}", fatal=True),)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:  # a null byte, nesting too deep
        return (Finding(1, f"not Python source: {error}", fatal=True),)
    kernels = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    return (*_language(tree), *_launch(tree), *_kernels(kernels), *_decoys(tree, kernels), *_imports(tree))


def _language(tree: ast.Module) -> Iterator[Finding]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(_named(t, "LANGUAGE") for t in statement.targets):
            value = statement.value.value if isinstance(statement.value, ast.Constant) else None
            if value != "triton":
                yield Finding(statement.lineno, f'LANGUAGE is {ast.unparse(statement.value)}, not "triton"', fatal=True)
            return
    yield Finding(1, 'LANGUAGE = "triton" is missing', fatal=True)


def _launch(tree: ast.Module) -> Iterator[Finding]:
    if not any(isinstance(statement, ast.FunctionDef) and statement.name == "launch" for statement in tree.body):
        yield Finding(1, "`launch(*inputs, *outputs)` is not defined", fatal=True)


def _kernels(kernels: list[ast.FunctionDef]) -> Iterator[Finding]:
    if not kernels:
        yield Finding(1, "no function is decorated with @triton.jit", fatal=True)


def _decoys(tree: ast.Module, kernels: list[ast.FunctionDef]) -> Iterator[Finding]:
    """Kernels whose name stands nowhere but in their definition. Calls through other means exist: a warning only."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for kernel in kernels:
        if kernel.name not in used:
            yield Finding(kernel.lineno, f"the kernel {kernel.name} is never used")


def _imports(tree: ast.Module) -> Iterator[Finding]:
    """Imports beyond what a kernel needs are worth a look; the sandbox, not this list, is what contains them."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        for name in names:
            if name.partition(".")[0] not in _QUIET:
                yield Finding(node.lineno, f"imports {name}")  # type: ignore[attr-defined]


def _is_kernel(function: ast.FunctionDef) -> bool:
    """Whether a decorator is `triton.jit`, `jit` or either called with options."""
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (isinstance(target, ast.Attribute) and target.attr == "jit") or _named(target, "jit"):
            return True
    return False


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
