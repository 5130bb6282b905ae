"""Reading a C++ kernel file without running it: LANGUAGE, SOURCE and `launch`, by ast."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from autokernel.languages import Finding

LOADER = "autokernel_loader"
_QUIET = frozenset({"torch", "ctypes", "math", "functools", "__future__", "typing", LOADER})


@dataclass(frozen=True)
class KernelText:
    """What a kernel file says of itself. `source` is None when a finding is fatal."""

    source: str | None
    serves: object
    findings: tuple[Finding, ...]


def read_kernel(text: str) -> KernelText:
    """The parts of a kernel file and what is wrong with it; nothing of it is run."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return KernelText(None, None, (Finding(error.lineno or 1, f"syntax error: {error.msg}", fatal=True),))
    except (ValueError, TypeError, MemoryError, RecursionError) as error:  # a null byte, nesting too deep
        return KernelText(None, None, (Finding(1, f"not Python source: {error}", fatal=True),))
    constants: dict[str, tuple[int, object]] = {}
    findings: list[Finding] = []
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            name = statement.targets[0].id
            if name in ("LANGUAGE", "SOURCE", "SERVES"):
                try:
                    constants[name] = (statement.lineno, ast.literal_eval(statement.value))
                except (ValueError, TypeError, MemoryError, RecursionError):
                    findings.append(Finding(statement.lineno, f"{name} is not a literal", fatal=name != "SERVES"))
    findings += _missing(tree, constants, {finding.message.split()[0] for finding in findings})
    findings += _imports(tree)
    source = constants.get("SOURCE", (0, None))[1]
    fatal = any(finding.fatal for finding in findings)
    usable = source if isinstance(source, str) and not fatal else None
    return KernelText(usable, constants.get("SERVES", (0, None))[1], tuple(findings))


def _missing(tree: ast.Module, constants: dict[str, tuple[int, object]], named: set[str]) -> list[Finding]:
    found = []
    if "LANGUAGE" not in named and constants.get("LANGUAGE", (1, None))[1] != "cpp":
        line, value = constants.get("LANGUAGE", (1, None))
        found.append(Finding(line, f'LANGUAGE is {value!r}, not "cpp"', fatal=True))
    if "SOURCE" not in named and not isinstance(constants.get("SOURCE", (1, None))[1], str):
        line = constants.get("SOURCE", (1, None))[0]
        found.append(Finding(line, "SOURCE, a module-level string literal with the C++ text, is missing", fatal=True))
    defined = [
        statement for statement in tree.body if isinstance(statement, ast.FunctionDef) and statement.name == "launch"
    ]
    if not defined:
        found.append(Finding(1, "`launch(*inputs, *outputs)` is not defined", fatal=True))
    return found


def _imports(tree: ast.Module) -> list[Finding]:
    """Imports beyond what a kernel needs are worth a look; the sandbox, not this list, is what contains them."""
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        found += [Finding(node.lineno, f"imports {name}") for name in names if name.partition(".")[0] not in _QUIET]  # type: ignore[attr-defined]
    return found
