"""The sections of vector_math.h that a piece of C++ uses, in dependency order."""

from __future__ import annotations

import functools
import re
from importlib import resources

_MARK = re.compile(r"^//: section (\w+)((?: \w+)*)\n", re.MULTILINE)


@functools.cache
def header() -> str:
    return resources.files("autokernel.generate").joinpath("vector_math.h").read_text(encoding="utf-8")


@functools.cache
def _sections() -> dict[str, tuple[tuple[str, ...], str]]:
    """name → (sections it needs, text)"""
    pieces = _MARK.split(header())[1:]
    names, needs, texts = pieces[0::3], pieces[1::3], pieces[2::3]
    return {name: (tuple(need.split()), text.strip()) for name, need, text in zip(names, needs, texts, strict=True)}


def sections_for(code: str) -> str:
    """The text of every section whose name occurs in `code`, and of those they need."""
    sections = _sections()
    used = set(re.findall(r"\w+", code)) & set(sections)
    chosen: list[str] = []

    def take(name: str) -> None:
        for need in sections[name][0]:
            take(need)
        if name not in chosen:
            chosen.append(name)

    for name in sections:
        if name in used:
            take(name)
    return "\n\n".join(sections[name][1] for name in chosen)
