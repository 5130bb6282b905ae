"""How a zygote is shut in: bubblewrap where it works, else what plain Linux gives a process without help.

bubblewrap: own user, pid, net, ipc and uts namespaces; a root that holds only the system's libraries, this Python, this
package and the compiled-kernel cache, all read-only; private /tmp, /dev, /proc. The zygote is process 1 of its pid
namespace: nothing inside can kill, stop or trace it, and when it dies the kernel kills everything inside.

plain: no new privileges, no capabilities, not dumpable, resource limits, descendants tracked and killed. It does not
hide files, the network, or other processes of the same user, and a candidate could send signals to those. Use it for
authors you trust that far.

Not covered by either: a limit on the memory of many processes together (each is limited, and all are the kernel's first
choice when memory runs out).
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

Isolation = Literal["bubblewrap", "plain"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_CONFIGURATION = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_PASSED = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")

PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE = 1, 3, 4
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int = 0) -> int:
    """prctl(2); returns its value. Raises OSError."""
    zero = ctypes.c_ulong(0)
    result = int(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
    return result


class _Hidden:
    """This process's own /proc entries, closed to others of the same user while any sandbox is open."""

    holders = 0

    @classmethod
    def enter(cls) -> None:
        if cls.holders == 0:
            prctl(PR_SET_DUMPABLE, 0)
        cls.holders += 1

    @classmethod
    def leave(cls) -> None:
        cls.holders -= 1
        if cls.holders == 0:
            prctl(PR_SET_DUMPABLE, 1)


hide_self, show_self = _Hidden.enter, _Hidden.leave


def drop_capabilities() -> None:
    """Give up every capability for good, the bounding set included. A no-op for a process that has none."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last capability, or not permitted, in which case there is none to lose
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def command(isolation: Isolation, config: dict[str, Any], cpp_cache: Path | None, device: str = "cpu") -> list[str]:
    """The command line that starts a zygote with `config` (JSON) under `isolation`."""
    start = python("autokernel.judge.zygote", "main", json.dumps(config))
    return [*_bubblewrap(cpp_cache, device), *start] if isolation == "bubblewrap" else start


def python(module: str, function: str, *arguments: str) -> list[str]:
    """The command line that calls `module.function(*arguments)` in an isolated Python, torch in reach."""
    paths = [str(Path(__file__).resolve().parents[2]), *map(str, _site_folders())]
    start = (
        f"import sys; sys.path += [p for p in {paths!r} if p not in sys.path]; "
        f"from {module} import {function}; {function}(*sys.argv[1:])"
    )
    return [sys.executable, "-I", "-c", start, *arguments]


def environment(threads: int, cpp_cache: Path | None, scratch: str | None = None) -> dict[str, str]:
    """The whole environment of a zygote: nothing of the user's but where shared libraries and GPUs are found."""
    made = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LOGNAME": "sandbox",  # whoever asks for the user's name finds no list of users here
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if cpp_cache is not None:
        made["AUTOKERNEL_CPP_CACHE"] = str(cpp_cache.resolve())
    if scratch is not None:
        made["TMPDIR"] = scratch
    for name in _PASSED:
        if value := os.environ.get(name):
            made[name] = value
    return made


_PROBES = {
    "cpu": "import os; assert os.getpid() == 1",
    "cuda": "import ctypes, os; assert os.getpid() == 1; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0, 'no CUDA'",
}


@functools.cache
def bubblewrap_problem(device: str = "cpu") -> str | None:
    """None when bubblewrap works here (found out by trying, once a process); else why it doesn't, in its own words.

    `device`: "cuda" tries whether the driver can be used inside, too.
    """
    if shutil.which("bwrap") is None:
        return "bubblewrap (the program bwrap) is not installed"
    try:
        done = subprocess.run(
            [*_bubblewrap(None, device), sys.executable, "-I", "-S", "-c", _PROBES[device]],
            capture_output=True,
            timeout=20,
            env=environment(1, None),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap can't be run: {error}"
    if done.returncode != 0:
        return f"bubblewrap fails here: {done.stderr.decode('utf-8', 'replace').strip()[-300:] or 'no message'}"
    return None


def shut_in(device: str) -> list[str]:
    """What stands before a command line that runs as children on this device do, under bubblewrap."""
    return _bubblewrap(None, device)


def _bubblewrap(cpp_cache: Path | None, device: str = "cpu") -> list[str]:
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    arguments += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm"]
    for path in (*_SYSTEM, *_CONFIGURATION, *_TOPOLOGY):
        arguments += ["--ro-bind-try", path, path]
    for path in _readable(cpp_cache):
        arguments += ["--ro-bind", path, path]
    if device == "cuda":
        arguments += ["--ro-bind", "/sys", "/sys"]  # the driver looks for its devices there
        for node in (*sorted(map(str, Path("/dev").glob("nvidia*"))), "/dev/nvidia-caps"):
            arguments += ["--dev-bind-try", node, node]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _readable(cpp_cache: Path | None) -> list[str]:
    """Existing paths beside the system's that a child must read, outer ones first."""
    executable = Path(sys.executable)
    wanted: list[Path] = [Path(sys.prefix), Path(sys.base_prefix), executable, executable.resolve()]
    wanted += [Path(__file__).resolve().parents[1], *_site_folders()]
    wanted += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    if cpp_cache is not None:
        wanted.append(cpp_cache.resolve())
    return _outermost(p for p in wanted if p.exists())


def _outermost(paths: Iterable[Path]) -> list[str]:
    """The paths without those that lie inside another one, or inside a folder that every sandbox has."""
    kept: list[Path] = []
    for path in sorted({Path(os.path.abspath(p)) for p in paths}, key=lambda p: len(p.parts)):
        inside = any(path.is_relative_to(other) for other in (*kept, *map(Path, _SYSTEM)))
        if not inside and path != Path("/"):
            kept.append(path)
    return [str(p) for p in kept]


@functools.cache
def _site_folders() -> tuple[Path, ...]:
    """The folders that our dependencies are imported from; outside this Python's prefix they must be named."""
    from importlib.util import find_spec

    found = []
    for name in ("torch", "numpy", "pydantic", "triton", "cuda"):
        spec = find_spec(name)
        places = spec.submodule_search_locations if spec is not None else None
        found += [Path(place).resolve().parent for place in places or ()]
    return tuple(dict.fromkeys(found))
