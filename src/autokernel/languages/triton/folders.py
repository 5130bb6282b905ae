"""Triton's cache folders: what is taken over from a worker, and copies at another place. Standard library only.

A cache folder holds one folder for each kernel, and in it `__grp__NAME.json`, which names the others by their absolute
paths: a folder that was only moved or copied is not found compiled. `place` writes those names anew.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FILE_BYTES = 64 << 20
TOTAL_BYTES = 256 << 20
FILES = 4000
_GROUP = "__grp__"
_KEPT = (".json", ".cubin", ".ptx", ".hsaco", ".amdgcn", ".so")  # what a launch needs, and what a person may read


class TooLarge(Exception):
    """A worker left more than is taken over."""


def place(source: Path, destination: Path, known_as: Path | None = None) -> None:
    """Copy what a launch needs of a cache folder, which an untrusted, ended process may have left. Raises `TooLarge`.

    `known_as`: the path that TRITON_CACHE_DIR will have where the kernels are launched, if it isn't `destination`.
    """
    known_as = known_as or destination
    copied = total = 0
    for folder in _folders(source):
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(_KEPT)]
        (destination / folder.name).mkdir(parents=True, exist_ok=True)
        for name in names:
            data = _read(folder / name)
            if data is None:
                continue
            copied, total = copied + 1, total + len(data)
            if copied > FILES or total > TOTAL_BYTES:
                raise TooLarge(f"the compiled kernels are more than {FILES} files or {TOTAL_BYTES >> 20} MiB")
            if name.startswith(_GROUP):
                data = _group(data, known_as / folder.name, set(names))
            (destination / folder.name / name).write_bytes(data)


def _folders(source: Path) -> Iterator[Path]:
    if not source.is_dir() or source.is_symlink():
        return
    for name in sorted(os.listdir(source))[:FILES]:
        path = source / name
        if stat.S_ISDIR(os.lstat(path).st_mode):
            yield path


def _read(path: Path) -> bytes | None:
    """The bytes of a regular file; None for anything else. Raises `TooLarge`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, a socket, no permission
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise TooLarge(f"{path.name} has more than {FILE_BYTES >> 20} MiB")
    return data


def _group(data: bytes, folder: Path, present: set[str]) -> bytes:
    """A group file with the paths its files have in `folder`. One that can't be read becomes an empty group."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    children = found.get("child_paths") if isinstance(found, dict) else None
    names = [name for name in children if name in present] if isinstance(children, dict) else []
    return json.dumps({"child_paths": {name: str(folder / name) for name in names}}).encode()
