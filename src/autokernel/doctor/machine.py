"""What every run needs: Python, torch, a compiler, the sandbox, git, cores, memory, disk.

The compiler builds and runs an OpenMP program, the sandbox starts, git commits, the cache folder takes a file. Imports
torch only inside its own check.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autokernel.doctor.check import Check

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 11)
LOW_MEMORY, LOW_DISK = 2 << 30, 2 << 30  # bytes; below, larger models and compiler caches may not fit
NO_MEMORY, NO_DISK = 512 << 20, 200 << 20  # bytes; below, nothing works

_OPENMP = r"""
#include <omp.h>
#include <cstdio>
int main() {
    int threads = 0;
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 1000; ++i) sum += i;
    #pragma omp parallel
    {
        #pragma omp single
        threads = omp_get_num_threads();
    }
    std::printf("%d %.0f\n", threads, sum);
}
"""


def check_python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", "fail", found, "Use Python 3.11 or later.")
    return Check("python", "ok", found)


def check_torch() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check(
            "torch", "fail", f"can't be imported: {error}", "Install it: `pip install -c constraints-cpu.txt torch`."
        )
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    capability = torch.backends.cpu.get_cpu_capability()
    found = f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads"
    if version < MIN_TORCH:
        return Check("torch", "fail", found, "autokernel needs torch 2.11 or later: `pip install -U torch`.")
    if not torch.backends.openmp.is_available():
        return Check(
            "torch", "warn", found + ", built without OpenMP", "Baselines will be slow; use an official wheel."
        )
    return Check("torch", "ok", found)


def check_compiler() -> Check:
    """The compiler that kernels are built with."""
    from autokernel.errors import NoCompiler
    from autokernel.languages.cpp import compiler

    try:
        return build_and_run(compiler.find())
    except NoCompiler as error:
        found, _, remedy = str(error).partition("\n")
        return Check("compiler", "fail", found, remedy)


def build_and_run(compiler: str) -> Check:
    """Compile a small OpenMP program for this CPU, as kernels are compiled, and run it."""
    from autokernel.languages.cpp.autokernel_loader import FLAGS

    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(_OPENMP)
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        built = _run([compiler, *flags, str(source), "-o", str(program)])
        if built.returncode:
            found = f"{compiler} can't build an OpenMP program: {_last(built.stderr)}"
            remedy = "Install a complete compiler (`apt-get install g++`), or set CXX to another one."
            return Check("compiler", "fail", found, remedy)
        ran = _run([str(program)])
    if ran.returncode or ran.stdout.split()[1:] != ["499500"]:
        found = f"a program built by {compiler} does not run: {_last(ran.stderr) or ran.stdout.strip()}"
        return Check("compiler", "fail", found, "Check that its OpenMP runtime (libgomp1, or libomp5) is installed.")
    version = _run([compiler, "--version"]).stdout.splitlines()[0]
    return Check("compiler", "ok", f"{version}; OpenMP with {ran.stdout.split()[0]} threads")


def check_sandbox() -> Check:
    """The same probe that judging uses: bubblewrap is really started, with the flags of a judged child."""
    from autokernel.judge.isolation import bubblewrap_problem

    problem = bubblewrap_problem()
    if problem is None:
        return Check("sandbox", "ok", "bubblewrap works: kernels are judged without network and files of yours")
    remedy = "Install it (`apt-get install bubblewrap`)" if shutil.which("bwrap") is None else "Allow user namespaces"
    return Check("sandbox", "warn", problem, f"{remedy}; until then kernels are judged in plain child processes.")


def check_git() -> Check:
    """A run keeps its history through pygit2; the `git` command is only for looking at it."""
    import pygit2

    with tempfile.TemporaryDirectory() as folder:
        repository = pygit2.init_repository(folder, bare=True)
        author = pygit2.Signature("autokernel doctor", "doctor@localhost")
        tree = repository.TreeBuilder().write()
        repository.create_commit("refs/heads/probe", author, author, "probe", tree, [])
    found = f"pygit2 {importlib.metadata.version('pygit2')}"
    if shutil.which("git") is None:
        return Check(
            "git", "warn", f"{found} commits; no git command", "To read a run's history: `apt-get install git`."
        )
    return Check("git", "ok", f"{found} commits; {_run(['git', '--version']).stdout.strip()}")


def check_cpu() -> Check:
    name, flags = _cpu_info()
    wanted = [flag for flag in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve") if flag in flags]
    cores = usable_cores()
    found = f"{name}, {cores} usable core{'s' if cores > 1 else ''}, {' '.join(wanted) or 'no vector extension known'}"
    if not wanted:
        return Check("cpu", "warn", found, "Kernels work, but vectors narrower than 256 bits leave less to gain.")
    return Check("cpu", "ok", found)


def check_load() -> Check:
    """Timings are paired and survive some noise, but not another program on every core."""
    load, cores = os.getloadavg()[0], usable_cores()
    found = f"{load:.1f} programs running on {cores} cores (mean of the last minute)"
    if load > cores / 2:
        return Check("load", "warn", found, "Stop other programs while a run measures, or expect wider intervals.")
    return Check("load", "ok", found)


def check_memory() -> Check:
    available, total = _memory()
    found = f"{_size(available)} of {_size(total)} free"
    if available < NO_MEMORY:
        return Check("memory", "fail", found, "Stop other programs, or use a machine with more memory.")
    if available < LOW_MEMORY:
        return Check(
            "memory", "warn", found, "Enough for small models only: inputs and outputs are kept several times."
        )
    return Check("memory", "ok", found)


def check_disk() -> Check:
    places = {str(Path.cwd()): "run folders", tempfile.gettempdir(): "temporary files"}
    free = {path: shutil.disk_usage(path).free for path in places}
    found = ", ".join(f"{_size(free[path])} free in {path} ({use})" for path, use in places.items())
    least = min(free.values())
    if least < NO_DISK:
        return Check("disk", "fail", found, "Free some space, or work in another folder (--out, TMPDIR).")
    if least < LOW_DISK:
        return Check("disk", "warn", found, "Long runs and compiler caches can take more; free some space.")
    return Check("disk", "ok", found)


def check_cache() -> Check:
    from autokernel import settings
    from autokernel.errors import BadSetting

    try:
        path = settings.cache_dir()
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except BadSetting as error:
        found, _, remedy = str(error).partition("\n")
        return Check("cache", "fail", found, remedy)
    except OSError as error:
        return Check("cache", "fail", f"{error.filename or path}: {error.strerror}",
                     "Set AUTOKERNEL_CACHE_DIR to a folder you can write to.")  # fmt: skip
    return Check("cache", "ok", f"{path} takes files, {_size(shutil.disk_usage(path).free)} free")


def check_packages() -> Check:
    """That the distribution itself is installed as a whole, so that `autokernel` and `import autokernel` agree."""
    try:
        version = importlib.metadata.version("autokernel-torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("autokernel", "warn", "running from source, not installed", "Install it: `pip install -e .`")
    return Check("autokernel", "ok", f"{version} ({Path(__file__).parents[1]})")


def usable_cores() -> int:
    """Cores this process may run on, which in a container are often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> tuple[int, int]:
    """Available and total bytes; the kernel's own estimate of what can be had without swapping."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    kilobytes = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in text.splitlines())}
    return kilobytes["MemAvailable"] << 10, kilobytes["MemTotal"] << 10


def _cpu_info() -> tuple[str, frozenset[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    name = fields.get("model name") or fields.get("Hardware") or platform.machine()
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _size(number: float) -> str:
    return f"{number / (1 << 30):.1f} GiB"
