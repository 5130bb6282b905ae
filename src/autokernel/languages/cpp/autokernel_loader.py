"""Builds and loads the C++ of a kernel file. Standard library only; an exported kernel carries a copy of this file.

`load(SOURCE)` returns a `ctypes.CDLL`. A library that is already built is found by the text's SHA-256 in the folder
that AUTOKERNEL_CPP_CACHE names; else it is built with the machine's C++ compiler, once, into the user's cache.

The flags keep PyTorch's values: no -ffast-math (it would change how the whole process treats subnormals, and what NaN
does), no contraction of a * b + c behind the source's back. Only `errno` and floating-point traps are given up. Jumps
aren't threaded: that tears the selects of a vector loop apart into masks. Import torch before loading: the library then
uses the OpenMP threads that torch has, rather than threads of its own.
"""

import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from typing import Any

FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-thread-jumps",
    "-fvisibility=default",
    "-Wall",
)
COMPILERS = ("g++", "c++", "clang++")
BUILT: dict[str, str] = {}  # source_hash → library, of those that this process built elsewhere than in the user's cache


class BuildError(Exception):
    """The text doesn't compile, or there is no compiler."""


def source_hash(source: str) -> str:
    """SHA-256 of the C++ text: the library's file name."""
    return hashlib.sha256(source.encode()).hexdigest()


def find_compiler() -> str | None:
    """Path of the C++ compiler: CXX, else the first of COMPILERS on the path; None without one."""
    wanted = os.environ.get("CXX", "").split()[:1]
    for name in wanted or COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    return None


@functools.cache
def compiler_version(compiler: str) -> str:
    """First line of `compiler --version`."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{compiler} doesn't run: {error}") from error
    return (done.stdout or done.stderr).partition("\n")[0]


@functools.cache
def processor() -> str:
    """What `-march=native` depends on."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read().partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part", "CPU implementer")
    lines = [line for line in first.splitlines() if line.partition("\t")[0].strip() in kept]
    return f"{platform.machine()} {' '.join(sorted(lines))}"


def cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "autokernel", "cpp")


def cache_key(source: str, compiler: str) -> str:
    """SHA-256 of everything the library's bytes depend on: the name of its folder in the cache."""
    parts = [source, list(FLAGS), compiler_version(compiler), processor()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def library_path(source: str, compiler: str, folder: str | None = None) -> str:
    """Where the library is, or will be, in the user's cache (`folder`: in another one)."""
    return os.path.join(folder or cache_folder(), cache_key(source, compiler), source_hash(source) + ".so")


def put(built: str, path: str) -> None:
    """Move a finished library to its place in the cache; whoever comes second replaces equal bytes."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with open(built, "rb") as source, os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())  # the name must not reach the disk before the bytes
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def is_whole(path: str) -> bool:
    """Whether a library is there, and not cut short (an ELF file ends with its table of sections)."""
    try:
        with open(path, "rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if head[:5] != b"\x7fELF\x02" or len(head) < 64:
        return size > 0 and head[:4] != b"\x7fELF" and head.strip(b"\0") != b""
    (table,) = struct.unpack_from("<Q", head, 40)
    length, count = struct.unpack_from("<HH", head, 58)
    return bool(0 < table + length * count <= size)


def build(source: str) -> str:
    """Compile with the machine's compiler into the user's cache; the library's path. Raises BuildError."""
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("no C++ compiler was found: install g++, or set CXX to its path")
    path = library_path(source, compiler)
    if is_whole(path):
        return path
    with tempfile.TemporaryDirectory(prefix="autokernel-") as scratch:
        text, built = os.path.join(scratch, "kernel.cpp"), os.path.join(scratch, "kernel.so")
        with open(text, "w", encoding="utf-8") as file:
            file.write(source)
        done = subprocess.run([compiler, *FLAGS, text, "-o", built], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(done.stderr.strip()[-4000:])
        put(built, path)
    return path


def load(source: str) -> ctypes.CDLL:
    """The library of a C++ text, as a ctypes.CDLL. Raises BuildError, OSError."""
    ready = os.environ.get("AUTOKERNEL_CPP_CACHE")
    if ready:
        path = os.path.join(ready, source_hash(source) + ".so")
        if os.path.exists(path):
            return ctypes.CDLL(path)
    if is_whole(BUILT.get(source_hash(source), "")):
        return ctypes.CDLL(BUILT[source_hash(source)])
    return ctypes.CDLL(build(source))


def arranged(tensor: Any, stride: tuple[int, ...]) -> Any:
    """`tensor` itself if its elements lie as `stride` says (extents of 1 don't matter), else a copy that does."""
    for extent, found, wanted in zip(tensor.shape, tensor.stride(), stride, strict=True):
        if extent > 1 and found != wanted:
            return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
    return tensor
