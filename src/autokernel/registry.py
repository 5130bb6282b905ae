"""Short name, dotted path or entry point → class. Nothing is imported before it is asked for.

    resolve("proposer", "search")                  a built-in name
    resolve("proposer", "mypackage.authors:Mine")  a dotted path, `package.module:Class`
    resolve("proposer", "mine")                    an entry point in the group "autokernel.proposers"

Built-in targets are strings, because the rooms they live in lie above this one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from autokernel.errors import MissingExtra, UnknownName

_DISTRIBUTION = "autokernel-torch"


@dataclass(frozen=True)
class _Builtin:
    path: str
    extra: str | None = None  # the optional dependency that brings what it imports


_BUILTIN: dict[str, dict[str, _Builtin]] = {
    "proposer": {
        "search": _Builtin("autokernel.propose.search:SearchProposer"),
        "replay": _Builtin("autokernel.propose.replay:ReplayProposer"),
    },
    "language": {
        "cpp": _Builtin("autokernel.languages.cpp.language:Cpp"),
    },
}


def group(kind: str) -> str:
    """The entry point group for a kind: "autokernel.proposers"."""
    return f"autokernel.{kind}s"


def known(kind: str) -> tuple[str, ...]:
    """Every short name of a kind: the built-in ones first, then those of installed packages."""
    builtin = _BUILTIN.get(kind, {})
    plugged = sorted(point.name for point in entry_points(group=group(kind)) if point.name not in builtin)
    return (*builtin, *plugged)


def resolve(kind: str, name: str) -> type[Any]:
    """The class called `name`. Raises UnknownName, or MissingExtra when a package it imports is not installed."""
    builtin = _BUILTIN.get(kind, {}).get(name)
    if builtin is not None:
        extra = f"{_DISTRIBUTION}[{builtin.extra}]" if builtin.extra else None
        return _load(kind, name, builtin.path, extra)
    if ":" in name:
        return _load(kind, name, name, None)
    point = next((point for point in entry_points(group=group(kind)) if point.name == name), None)
    if point is None:
        raise UnknownName(kind=kind, name=name, known=", ".join(known(kind)) or "none")
    return _load(kind, name, point.value, _install_line(point))


def _load(kind: str, name: str, path: str, install: str | None) -> type[Any]:
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UnknownName(kind=kind, name=name, known=", ".join(known(kind)) or "none")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            # the path itself leads nowhere: a typing mistake, and no reason to suggest installing what it spells
            raise UnknownName(kind=kind, name=name, known=", ".join(known(kind)) or "none") from error
        package = missing.partition(".")[0]
        raise MissingExtra(what=f"The {kind} {name}", package=package, install=install or package) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise UnknownName(kind=kind, name=name, known=", ".join(known(kind)) or "none")
    return found


def _install_line(point: EntryPoint) -> str | None:
    return point.dist.name if point.dist is not None else None
