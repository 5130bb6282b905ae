"""The C++ language: check by ast, build into the content-addressed cache, never run."""

from __future__ import annotations

import struct
import tempfile
import time
from pathlib import Path

from autokernel import settings
from autokernel.languages import Artifact, CompileFailure, Finding
from autokernel.languages.cpp import autokernel_loader as loader
from autokernel.languages.cpp import compiler as toolchain
from autokernel.languages.cpp.source import read_kernel
from autokernel.records import Resources, Task

LOADER_DIRECTORY = Path(loader.__file__).parent  # holds autokernel_loader.py: put it on a child's sys.path
LOG_LIMIT = 4000  # characters of the compiler's words that an author is shown


class Cpp:
    """C++17 with OpenMP. `deadline`: seconds one compilation may take."""

    name = "cpp"

    def __init__(self, deadline: float = 60.0) -> None:
        self.deadline = deadline

    def check(self, source: str) -> tuple[Finding, ...]:
        """Findings from the text of a kernel file alone."""
        return read_kernel(source).findings

    def compile(self, source: str, task: Task | None = None, target: str | None = None) -> Artifact:
        """Build the SOURCE of a kernel file, or find it built; for this machine, whatever the task and target.

        Raises `CompileFailure`, `NoCompiler`, `CompilerFailed`, `BadSetting`. The artifact's directory holds one
        library, named after the SHA-256 of the C++ text; a child finds it through AUTOKERNEL_CPP_CACHE.
        """
        began = time.perf_counter()
        kernel = read_kernel(source)
        if kernel.source is None:
            raise CompileFailure("\n".join(f"line {f.line}: {f.message}" for f in kernel.findings if f.fatal))
        compiler = toolchain.find()
        toolchain.version(compiler)
        path = Path(loader.library_path(kernel.source, compiler, str(settings.cache_dir() / "cpp")))
        log = ""
        if not loader.is_whole(str(path)):
            log = self._build(kernel.source, compiler, path)
        loader.BUILT[loader.source_hash(kernel.source)] = str(path)  # for a kernel that this process itself loads
        resources = Resources(code_bytes=code_bytes(path.read_bytes()))
        return Artifact(loader.source_hash(kernel.source), path.parent, resources, time.perf_counter() - began, log)

    def _build(self, text: str, compiler: str, path: Path) -> str:
        try:
            status, log, library = toolchain.build(compiler, text, self.deadline)
        except TimeoutError as error:
            raise CompileFailure(str(error)) from error
        if status or not library:
            raise CompileFailure(shorten(log) or f"the compiler ended with status {status}")
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library)
            file.flush()
            loader.put(file.name, str(path))
        return shorten(log)


def shorten(log: str, limit: int = LOG_LIMIT) -> str:
    """The first lines of a compiler's words: later errors mostly follow from the first."""
    text = log.strip()
    return text if len(text) <= limit else text[:limit].rsplit("\n", 1)[0] + "\n…"


def code_bytes(library: bytes) -> int | None:
    """Size of the executable segments of an ELF library; None for another format."""
    if library[:5] != b"\x7fELF\x02":
        return None
    (start,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    total = 0
    for k in range(count):
        kind, flags = struct.unpack_from("<II", library, start + k * size)
        (length,) = struct.unpack_from("<Q", library, start + k * size + 32)
        total += length if kind == 1 and flags & 1 else 0
    return total
