"""Kernel languages: check, compile without the device, report resources; loading happens in a judged child only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autokernel.records import Resources


@dataclass(frozen=True)
class Finding:
    """Something seen in a source without running it. Static findings may warn; only `fatal` ones end the judging."""

    line: int
    message: str
    fatal: bool = False


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel: the files the child may read (the content-addressed cache folder) and what they cost."""

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

    def compile(self, source: str) -> Artifact:
        """Build for this machine, without running any of the candidate's Python. Raises CompileFailure, NoCompiler."""
        ...


def get_language(name: str) -> Language:
    """The language called `name`, as in a kernel file's LANGUAGE. Raises `UnknownName`."""
    from autokernel.errors import UnknownName

    if name == "cpp":
        from autokernel.languages.cpp.language import Cpp

        return Cpp()
    raise UnknownName(kind="kernel language", name=name, known="cpp")
