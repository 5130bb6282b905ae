"""How the compiling processes are shut in: bubblewrap where it works, else plain Linux.

bubblewrap: no network, no devices, own user, pid, ipc and uts namespaces; a read-only root with the system's libraries
and tools, this Python and this package; a private /tmp; one folder to write to, and each worker sees only its own part
of it (`seclude`). plain: no new privileges, resource limits, everything killed at the deadline; files, network and
other processes of the user are within reach. Use plain for authors you trust that far.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

Isolation = Literal["bubblewrap", "plain"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_CONFIGURATION = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_FILE_BYTES = 256 << 20  # of any file a worker writes
_TMPFS_BYTES = 1 << 30
_UID = "1000"  # inside; outside it is the user

_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _REMOUNT, _BIND, _RDONLY = 2, 4, 32, 4096, 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def command(isolation: Isolation, work: Path, config: dict[str, Any]) -> list[str]:
    """The command line that starts a zygote which may write below `work`."""
    paths = [str(Path(__file__).resolve().parents[3]), *map(str, _site_folders())]
    start = (
        f"import sys; sys.path += [p for p in {paths!r} if p not in sys.path]; "
        "from autokernel.languages.triton.zygote import main; main(sys.argv[1])"
    )
    inner = [sys.executable, "-I", "-c", start, json.dumps(config)]
    return [*_bubblewrap(work), *inner] if isolation == "bubblewrap" else inner


def environment() -> dict[str, str]:
    """The whole environment of a zygote. No TRITON_* variable of the user: they would change Triton's cache key."""
    made = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/tmp",
        "LOGNAME": "sandbox",  # whoever asks for the user's name finds no list of users here
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
    }
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        made["LD_LIBRARY_PATH"] = libraries
    return made


@functools.cache
def bubblewrap_problem() -> str | None:
    """None when bubblewrap works here (found out by trying, once a process); else why it doesn't, in its own words."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (the program bwrap) is not installed"
    try:
        done = subprocess.run(
            [*_bubblewrap(None), sys.executable, "-I", "-S", "-c", "import os; assert os.getpid() == 1"],
            capture_output=True,
            timeout=20,
            env=environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap can't be run: {error}"
    if done.returncode != 0:
        return f"bubblewrap fails here: {done.stderr.decode('utf-8', 'replace').strip()[-300:] or 'no message'}"
    return None


def seclude(work: Path, own: Path) -> None:
    """Leave this process (the children it forks) only `own` to write to, of everything below `work`, and pids of their
    own. Raises `OSError` where a process in a sandbox may not open another one inside.
    """
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(_NEWUSER | _NEWNS | _NEWPID), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    folder = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # of the new namespace, seen before it is hidden
    _mount("tmpfs", work, "tmpfs", _NOSUID | _NODEV, f"size={_TMPFS_BYTES}")
    os.mkdir(own)
    _mount(f"/proc/self/fd/{folder}", own, None, _BIND)
    os.close(folder)
    for place in ("/tmp", "/dev/shm"):
        _mount(None, place, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def give_up_privileges() -> None:
    """No new privileges and no capabilities, for good."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last capability, or not permitted, in which case there is none to lose
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def limit(memory_bytes: int | None) -> None:
    """Resource limits of a worker; first in line when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
    if memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, _data_bytes() + memory_bytes)


def prctl(option: int, value: int) -> None:
    """Raises `OSError`."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option}, {value})")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, place: str | Path, kind: str | None, flags: int, options: str | None = None) -> None:
    parts = [None if text is None else os.fsencode(text) for text in (source, place, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*parts, ctypes.c_ulong(flags), data), f"mount {place}")


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _data_bytes() -> int:
    with open("/proc/self/status") as file:
        lines = [line for line in file if line.startswith("VmData:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def _bubblewrap(work: Path | None) -> list[str]:
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    arguments += [
        "--uid",
        _UID,
        "--gid",
        _UID,
    ]  # not 0: the kernel lets a worker that would be root shut itself in no further
    arguments += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm"]
    for path in (*_SYSTEM, *_CONFIGURATION):
        arguments += ["--ro-bind-try", path, path]
    for path in _readable():
        arguments += ["--ro-bind", path, path]
    if work is not None:
        arguments += ["--bind", str(work), str(work)]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _readable() -> list[str]:
    """Existing paths beside the system's that a worker must read, outer ones first."""
    executable = Path(sys.executable)
    wanted: list[Path] = [Path(sys.prefix), Path(sys.base_prefix), executable, executable.resolve()]
    wanted += [Path(__file__).resolve().parents[2], *_site_folders()]
    wanted += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    return _outermost(path for path in wanted if path.exists())


def _outermost(paths: Iterable[Path]) -> list[str]:
    """The paths without those that lie inside another one, or inside a folder that every sandbox has."""
    kept: list[Path] = []
    for path in sorted({Path(os.path.abspath(p)) for p in paths}, key=lambda p: len(p.parts)):
        if path != Path("/") and not any(path.is_relative_to(other) for other in (*kept, *map(Path, _SYSTEM))):
            kept.append(path)
    return [str(path) for path in kept]


@functools.cache
def _site_folders() -> tuple[Path, ...]:
    """The folders that torch, triton and numpy are imported from; outside this Python's prefix they must be named."""
    from importlib.util import find_spec

    specs = (find_spec(name) for name in ("torch", "triton", "numpy", "pydantic"))
    return tuple(dict.fromkeys(Path(s.origin).resolve().parents[1] for s in specs if s is not None and s.origin))
