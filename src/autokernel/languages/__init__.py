"""Kernel languages: check, compile without the device, report resources; loading happens in a judged child only."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autokernel.records import Resources, Task


@dataclass(frozen=True)
class Finding:
    """Something seen in a source without running it. Static findings may warn; only `fatal` ones end the judging."""

    line: int
    message: str
    fatal: bool = False


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel: the files the child may read and what they cost.

    `directory`: for C++ the folder of the library in the content-addressed cache; for Triton a private cache folder
    (see `languages.triton.folders.place`). `log`: the compiler's remarks, or what could not be compiled ahead.
    """

    source_sha256: str
    directory: Path | None  # bound read-only into the child; None when there is nothing to build
    resources: Resources
    seconds: float
    log: str = ""


class CompileFailure(Exception):
    """The candidate does not compile; `log` is the compiler's own words, shortened."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


class Language(Protocol):
    name: str

    def check(self, source: str) -> tuple[Finding, ...]:
        """Findings from the text alone (ast); a fatal one has no `launch`, or no such language."""
        ...

    def compile(self, source: str, task: Task | None = None, target: str | None = None) -> Artifact:
        """Build, without a GPU and without running any of the candidate's Python in this process.

        `task`: the shapes that specialisations are made from. `target`: "cuda:90", "hip:gfx942"; None: this machine.
        C++ ignores both. Raises CompileFailure, and the language's own named errors.

        A language may also have `prefetch(sources, task, target)`, which starts compiling in the background.
        """
        ...


def get_language(name: str) -> Language:
    """The language called `name`, as in a kernel file's LANGUAGE. Raises `UnknownName`."""
    from autokernel.errors import UnknownName

    if name == "cpp":
        from autokernel.languages.cpp.language import Cpp

        return Cpp()
    if name == "triton":
        return _triton()
    raise UnknownName(kind="kernel language", name=name, known="cpp, triton")


@functools.cache
def _triton() -> Language:
    """One for this process: it owns compiling processes and what they have compiled."""
    from autokernel.languages.triton.language import Triton

    return Triton()
