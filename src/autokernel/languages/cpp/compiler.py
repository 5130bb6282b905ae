"""Running the C++ compiler on untrusted text: in bubblewrap where that works, under a deadline, in a scratch folder.

A compiler reads files (`#include "/etc/passwd"`, `.incbin`), so inside the sandbox it sees the toolchain and its
scratch folder only, and no network. Where bubblewrap doesn't work, the compiler runs plainly; `isolated()` tells which.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from autokernel import settings
from autokernel.errors import CompilerFailed, NoCompiler
from autokernel.languages.cpp import autokernel_loader as loader

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/nix",
)
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX")


def find() -> str:
    """Path of the compiler: the one of the settings, else the first known. Raises `NoCompiler`, `BadSetting`."""
    wanted = (settings.load().cxx or "").split()[:1]
    path = shutil.which(wanted[0]) if wanted else loader.find_compiler()
    if path is None:
        raise NoCompiler(looked_for=", ".join(wanted or loader.COMPILERS))
    return str(path)


def version(compiler: str) -> str:
    """Raises `CompilerFailed`."""
    try:
        return str(loader.compiler_version(compiler))
    except loader.BuildError as error:
        raise CompilerFailed(compiler=compiler, detail=error) from error


@functools.cache
def isolated(compiler: str) -> bool:
    """Whether the compiler runs inside bubblewrap here."""
    if shutil.which("bwrap") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="autokernel-") as scratch:
        (Path(scratch) / "probe.cpp").write_text("int probe() { return 1; }\n", encoding="utf-8")
        try:
            status, _ = _run(
                [*_wrap(compiler, scratch), compiler, "-shared", "-fPIC", "probe.cpp", "-o", "probe.so"], scratch, 30.0
            )
        except TimeoutError:
            return False
        return status == 0 and (Path(scratch) / "probe.so").exists()


def build(compiler: str, source: str, deadline: float) -> tuple[int, str, bytes]:
    """Compile a text. Returns the exit status, the compiler's words and the library. Raises `TimeoutError`."""
    with tempfile.TemporaryDirectory(prefix="autokernel-") as scratch:
        (Path(scratch) / "kernel.cpp").write_text(source, encoding="utf-8")
        before = _wrap(compiler, scratch) if isolated(compiler) else []
        status, log = _run([*before, compiler, *loader.FLAGS, "kernel.cpp", "-o", "kernel.so"], scratch, deadline)
        built = Path(scratch) / "kernel.so"
        return status, log, built.read_bytes() if status == 0 and built.is_file() and not built.is_symlink() else b""


def _environment() -> dict[str, str]:
    """What a compiler needs of the user's environment; nothing else of it is any of its business."""
    return {"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in _PASSED if name in os.environ}}


def _wrap(compiler: str, scratch: str) -> list[str]:
    """bubblewrap's command line: the toolchain read-only, the scratch folder, nothing else."""
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--tmpfs", "/tmp"]
    for name, value in _environment().items():
        command += ["--setenv", name, value]
    for place in (*_SYSTEM, *_toolchain(compiler)):
        if os.path.islink(place):
            command += ["--symlink", os.readlink(place), place]
        elif os.path.exists(place):
            command += ["--ro-bind", place, place]
    return [*command, "--proc", "/proc", "--dev", "/dev", "--bind", scratch, "/work", "--chdir", "/work"]


def _toolchain(compiler: str) -> list[str]:
    """Where a compiler outside the system's folders lives: its prefix (bin beside lib), else its own folder."""
    places = []
    for path in dict.fromkeys((Path(compiler).absolute(), Path(compiler).resolve())):
        if not any(path.is_relative_to(place) for place in _SYSTEM):
            prefix = path.parent.parent
            whole = path.parent.name == "bin" and (prefix / "lib").is_dir() and prefix != Path.home()
            places.append(str(prefix if whole else path.parent))
    return places


def _run(command: list[str], folder: str, deadline: float) -> tuple[int, str]:
    """Exit status and output. The process and its children are killed at the deadline (seconds)."""
    environment = {**_environment(), "TMPDIR": "/tmp" if command[0] == "bwrap" else folder}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"the compiler took more than {deadline:g} s") from error
        raise
    return process.returncode, output.decode(errors="replace")
