"""Registers, spills and shared memory of compiled kernels, read from their files; nothing is loaded or run.

A cubin says it in its `.nv.info` section: a list of (format, attribute, size, value), of which the ones with the
attributes below hold a symbol's index and a number (the same figures as `cuobjdump -res-usage`). The files come from a
process that the candidate controlled: they are parsed with care, and what they say is for people, not for verdicts.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from autokernel.records import Resources

_FORMAT_SIZED = 0x04
_REGISTERS, _FRAME, _LOCAL = 0x2F, 0x11, 0x12
_SECTION = struct.Struct("<IIQQQQIIQQ")


def of_cubin(data: bytes) -> Resources | None:
    """Registers a thread and bytes of local memory (stack and spills) a thread; the largest over the file's kernels.

    None for bytes that aren't a cubin.
    """
    registers: list[int] = []
    local: list[int] = []
    try:
        for attribute, value in _attributes(data):
            if attribute == _REGISTERS:
                registers.append(value)
            elif attribute == _FRAME:
                local.append(value)
    except (struct.error, IndexError, ValueError):
        return None
    return Resources(registers=max(registers), spills=max(local, default=0)) if registers else None


def of_assembly(text: str) -> Resources | None:
    """Of AMD assembly: vector registers, and bytes of scratch memory a thread; the largest over its kernels."""
    registers = [int(n) for n in re.findall(r"^\s*\.vgpr_count:\s+(\d{1,9})$", text, re.MULTILINE)]
    scratch = [int(n) for n in re.findall(r"^\s*\.private_segment_fixed_size:\s+(\d{1,9})$", text, re.MULTILINE)]
    return Resources(registers=max(registers), spills=max(scratch, default=0)) if registers else None


def of_folder(folder: Path) -> Resources:
    """The largest figures over all kernels in a Triton cache folder. `code_bytes`: of all its binaries together."""
    found: list[Resources] = []
    shared: list[int] = []
    code = 0
    for path in sorted(folder.glob("*/*")):
        one = None
        if path.suffix == ".cubin":
            one = of_cubin(path.read_bytes())
        elif path.suffix == ".amdgcn":
            one = of_assembly(path.read_text(encoding="utf-8", errors="replace"))
        elif path.suffix == ".json" and not path.name.startswith("__grp__"):
            shared += _shared(path)
        if path.suffix in (".cubin", ".hsaco"):
            code += path.stat().st_size
        found += [one] if one is not None else []
    return Resources(
        registers=max((r.registers for r in found if r.registers is not None), default=None),
        spills=max((r.spills for r in found if r.spills is not None), default=None),
        shared_bytes=max(shared, default=None),
        code_bytes=code or None,
    )


def _shared(path: Path) -> list[int]:
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return []
    value = data.get("shared") if isinstance(data, dict) else None
    return [value] if isinstance(value, int) and 0 <= value < 1 << 31 else []


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, value) of the entries of every `.nv.info` section that name a symbol and a number."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    sections = [_SECTION.unpack_from(data, table + size * i) for i in range(count)]
    name_table = sections[names][4]
    for name, _, _, _, begin, length, *_ in sections:
        start = name_table + name
        if data[start : data.index(b"\0", start)] != b".nv.info":
            continue
        place, end = begin, min(begin + length, len(data))
        while place + 4 <= end:
            form, attribute, width = struct.unpack_from("<BBH", data, place)
            place += 4
            if form == _FORMAT_SIZED:
                if width == 8 and place + 8 <= end:
                    yield attribute, struct.unpack_from("<II", data, place)[1]
                place += width
