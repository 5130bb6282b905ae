"""results.tsv: one line an experiment, the columns of `Trial` in order, and the rules for reading a damaged one.

A line counts once its newline is on the disk. What follows the last newline is torn: it is ignored by readers and cut
off by the next writer. Columns that this version doesn't know (a later one appended them) are ignored; columns that an
older version didn't write take the field's default. Tabs, newlines and backslashes in a text are escaped.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path

from pydantic import ValidationError

from autokernel.errors import BrokenFile
from autokernel.loop.files import write_atomic
from autokernel.records import Trial

COLUMNS = tuple(Trial.model_fields)
HEADER = "\t".join(COLUMNS) + "\n"

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def format_line(trial: Trial, columns: tuple[str, ...] = COLUMNS) -> str:
    """The line of a trial, newline included. None is an empty field; floats read back equal."""
    return "\t".join(_field(getattr(trial, column, None)) for column in columns) + "\n"


def parse_line(line: str, columns: tuple[str, ...]) -> Trial:
    """Raises ValueError if the line is not a trial."""
    values = line.split("\t")
    if len(values) != len(columns):
        raise ValueError(f"{len(values)} fields where the header has {len(columns)}")
    known = {name: _unescape(value) for name, value in zip(columns, values, strict=True) if name in COLUMNS}
    optional = {name for name, field in Trial.model_fields.items() if field.default is None}
    cleaned = {name: None if value == "" and name in optional else value for name, value in known.items()}
    return Trial.model_validate(cleaned)


def read(path: Path) -> tuple[Trial, ...]:
    """Every whole line, in file order; a torn last one is left out. Raises BrokenFile for damage before it."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise BrokenFile(path=path, detail=error.strerror) from error
    whole = text[: text.rfind("\n") + 1]
    if not whole:
        return ()
    header, *lines = whole[:-1].split("\n")
    columns = tuple(header.split("\t"))
    if columns[0] != COLUMNS[0]:
        raise BrokenFile(path=path, detail=f"line 1 is not a header of results.tsv: {header[:60]!r}")
    trials = []
    for number, line in enumerate(lines, start=2):
        try:
            trials.append(parse_line(line, columns))
        except (ValueError, ValidationError) as error:
            raise BrokenFile(path=path, detail=f"line {number}: {error}") from error
    return tuple(trials)


def repair(path: Path) -> int:
    """Cut off a torn last line; write the header if there is none; add columns that an older version didn't know.

    Returns the bytes cut off. Only the holder of the run's lock may call it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        data = file.read()
        keep = data.rfind(b"\n") + 1
        if keep != len(data):
            file.truncate(keep)
        if keep == 0:
            file.seek(0)
            file.write(HEADER.encode())
        file.flush()
        os.fsync(file.fileno())
    missing = [column for column in COLUMNS if column not in columns_of(path)]
    if missing:
        write_atomic(path, HEADER + "".join(format_line(trial) for trial in read(path)))
    return len(data) - keep


def columns_of(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(file.readline().rstrip("\n").split("\t"))


def append(path: Path, trial: Trial) -> None:
    """One write, then fsync: the commit point of an experiment."""
    line = format_line(trial, columns_of(path))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        data = line.encode("utf-8", errors="backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, float):
        return repr(value)
    return "".join(_ESCAPES.get(character, character) for character in str(value))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, characters = [], iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            out.append(_UNESCAPES.get(following, "\\" + following))
        else:
            out.append(character)
    return "".join(out)
