"""What every benchmark here shares: rows by name, measured most important first, kept on disk after each.

    python benchmarks/clock.py --rows softmax-512x4096,add-large --merge old.json --out new.json --device-seconds 300

A row is a function that returns its figures. After each row the file is written anew, whole or not at all, so that an
interrupted benchmark has lost one row at most. `--merge FILE` keeps what FILE has of rows whose code, device and
library versions are still the same, and measures the others. A row that raises is recorded with its error and the
rest goes on; the exit status is then 1.

A row's code is its benchmark's own files and what it says it exercises of `src/autokernel`. Not in that hash: this
harness, the driver (recorded for each row), the clocks of the device.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "autokernel"
Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """`exercises`: globs under src/autokernel (`*` also matches `/`) of the code that the figures depend on.

    A figure called `passed` says whether the row reached its limits. `about`: device seconds it is expected to take;
    it is not started when less is left.
    """

    name: str
    run: Callable[[], Figures]
    exercises: tuple[str, ...] = ("*.py",)
    about: float = 0.0


@dataclass(frozen=True)
class Benchmark:
    """`table(results)` is what is printed last, from all rows that have figures, in order.

    `options` are further command-line options; `rows` gets them parsed. `beside`: files in the same folder that the
    figures depend on. `strict`: a row that has not `passed` makes the exit status 1, too.
    """

    name: str
    file: Path
    rows: Callable[[argparse.Namespace], Sequence[Row]]
    table: Callable[[dict[str, Figures]], str]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    beside: tuple[str, ...] = ()
    strict: bool = False
    source: Path = SOURCE


@dataclass
class _Session:
    """One call of a benchmark: what it found, and the file it keeps that in."""

    benchmark: Benchmark
    out: Path | None
    where: Figures
    kept: dict[str, Figures] = field(default_factory=dict)
    used: float = 0.0
    left_out: list[str] = field(default_factory=list)
    finished: bool = False

    def write(self) -> None:
        if self.out is None:
            return
        text = {
            "schema": SCHEMA,
            "benchmark": self.benchmark.name,
            **self.where,
            "device_seconds": round(self.used, 2),
            "finished": self.finished,
            "not_started": self.left_out,
            "rows": self.kept,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        part = self.out.with_name(f".{self.out.name}.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(text, file, indent=2, allow_nan=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.out)


def main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Run a benchmark's rows as the command line asks. Returns the exit status: 0, 1 (a row failed) or 2 (usage)."""
    parser = argparse.ArgumentParser(prog=benchmark.file.name, description=f"benchmark: {benchmark.name}")
    parser.add_argument("--rows", help="names, separated by commas (default: all)")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="keep rows that FILE has for the same code")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON here after every row")
    parser.add_argument("--device-seconds", type=float, metavar="N", help="start no row after N seconds of rows")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    benchmark.options(parser)
    options = parser.parse_args(argv)
    rows = list(benchmark.rows(options))
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    if options.rows is not None:
        wanted = [name.strip() for name in options.rows.split(",") if name.strip()]
        unknown = sorted(set(wanted) - {row.name for row in rows})
        if unknown or not wanted:
            print(f"no row {', '.join(unknown) or 'named'}; there are: {', '.join(row.name for row in rows)}")
            return 2
        rows = [row for row in rows if row.name in wanted]
    return _run(benchmark, rows, options)


def _run(benchmark: Benchmark, rows: Sequence[Row], options: argparse.Namespace) -> int:
    session = _Session(benchmark, options.out, surroundings())
    earlier = _earlier(options.merge, session.where)
    for row in rows:
        old = earlier.get(row.name)
        if old is not None and old["status"] == "measured" and old["code_hash"] == code_hash(benchmark, row):
            session.kept[row.name] = {**old, "merged": True}
            print(f"{row.name}: kept from {options.merge}", flush=True)
    to_do = [row for row in rows if row.name not in session.kept]
    for index, row in enumerate(to_do):
        left = math.inf if options.device_seconds is None else options.device_seconds - session.used
        if left <= 0 or left < row.about:
            session.left_out = [one.name for one in to_do[index:]]
            break
        session.kept[row.name] = _measure(benchmark, row, session)
        session.write()
    session.finished = not session.left_out
    session.write()
    return _finish(session, rows)


def _measure(benchmark: Benchmark, row: Row, session: _Session) -> Figures:
    print(f"{row.name}: measuring", flush=True)
    found: Figures = {"status": "measured", "code_hash": code_hash(benchmark, row)}
    begin = time.monotonic()
    try:
        found["figures"] = row.run()
    except Exception as error:
        traceback.print_exc()
        words = "".join(traceback.format_exception_only(error)).strip()
        found |= {"status": "failed", "error": words, "traceback": traceback.format_exc()[-4000:]}
    found["seconds"] = round(time.monotonic() - begin, 3)
    session.used += found["seconds"]
    found |= {key: session.where[key] for key in ("device", "driver", "versions", "commit", "changed_files")}
    found["finished_at"] = _now()
    print(f"{row.name}: {found['status']} in {found['seconds']:.1f} s", flush=True)
    return found


def _finish(session: _Session, rows: Sequence[Row]) -> int:
    ordered = [row.name for row in rows if row.name in session.kept]
    failed = [name for name in ordered if session.kept[name]["status"] == "failed"]
    good = {name: session.kept[name]["figures"] for name in ordered if name not in failed}
    missed = [name for name, figures in good.items() if figures.get("passed") is False]
    merged = sum(session.kept[name].get("merged", False) for name in ordered)
    print(f"\ndevice time used: {session.used:.1f} s; {len(ordered) - merged} rows measured, {merged} kept")
    if session.left_out:
        print(f"not started, the device time was spent: {', '.join(session.left_out)}")
    for name in failed:
        print(f"FAILED {name}: {session.kept[name]['error']}")
    if missed:
        print(f"limits missed: {', '.join(missed)}")
    if session.out is not None:
        print(f"written to {session.out}")
    print(f"{session.where['device']}, driver {session.where['driver']}, commit {session.where['commit']}\n")
    print(session.benchmark.table(good), flush=True)
    return 1 if failed or (missed and session.benchmark.strict) else 0


def _earlier(path: Path | None, where: Figures) -> dict[str, Figures]:
    """The rows of a file that were measured on this device with these versions."""
    if path is None:
        return {}
    if not path.exists():
        print(f"nothing to merge: {path} isn't there yet")
        return {}
    rows: dict[str, Figures] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    same = {n: r for n, r in rows.items() if all(r[key] == where[key] for key in ("device", "versions"))}
    if len(same) < len(rows):
        print(f"{len(rows) - len(same)} rows of {path} are of another device or other versions and are not kept")
    return same


# --- what a figure depends on -----------------------------------------------------------------------------------------


def code_hash(benchmark: Benchmark, row: Row) -> str:
    """sha256 over the benchmark's own files and the files the row exercises, by name and content."""
    files = {path.relative_to(benchmark.source).as_posix(): path for path in benchmark.source.rglob("*")}
    wanted = sorted(
        name
        for name, path in files.items()
        if path.is_file()
        and "__pycache__" not in path.parts
        and any(fnmatch.fnmatch(name, glob) for glob in row.exercises)
    )
    unmatched = [glob for glob in row.exercises if not fnmatch.filter(wanted, glob)]
    if unmatched:
        raise ValueError(f"row {row.name} exercises {', '.join(unmatched)}, which is no file of {benchmark.source}")
    digest = hashlib.sha256()
    own = [benchmark.file, *(benchmark.file.parent / name for name in benchmark.beside)]
    for name, path in [*((path.name, path) for path in own), *((name, files[name]) for name in wanted)]:
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def surroundings() -> Figures:
    """Device, driver, versions and commit. Makes no CUDA context."""
    device, driver = _device()
    return {
        "device": device,
        "driver": driver,
        "versions": {"python": platform.python_version(), "torch": _version("torch"), "triton": _version("triton")},
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "started_at": _now(),
    }


def _device() -> tuple[str, str]:
    if shutil.which("nvidia-smi") is None:
        return f"{platform.machine()} CPU, {os.cpu_count()} cores", "none"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True)
    if found.returncode or not found.stdout.strip():
        return f"{platform.machine()} CPU, {os.cpu_count()} cores", "none (nvidia-smi finds no device)"
    name, driver = found.stdout.splitlines()[0].split(", ")
    return name, driver


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*words: str) -> str:
    if shutil.which("git") is None:
        return "unknown"
    found = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def text_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    cells = [list(header), *(list(line) for line in lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    padded = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    return "\n".join(line.rstrip() for line in padded)


if __name__ == "__main__":
    sys.exit("this is what the benchmarks share: run one of the files beside it")
