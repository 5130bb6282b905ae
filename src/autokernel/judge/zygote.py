"""The zygote: a process that imports torch, runs no tensor operation, and forks a child when the parent asks.

It is exec'd with a clean environment (never forked from the user's process), so nothing of the user's is in its memory.
It runs no candidate code itself. A fork before any OpenMP region is safe, and costs milliseconds where importing torch
costs seconds. It also stops, continues and kills everything that its children started, however they tried to hide.

Under bubblewrap it is process 1 of its pid namespace. In plain isolation two processes watch each other (`_guard`):
whichever dies, the other kills all descendants and ends; they are subreapers, so orphans come back to them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn
from unittest import mock

from autokernel.judge import isolation, protocol
from autokernel.judge.protocol import Ack, Control, ControlRequest

KILL_SECONDS = 20.0
STOP_SECONDS = 5.0
DYING_SECONDS = 0.1  # that a killed process takes to be gone


def main(argument: str) -> NoReturn:
    """Entry of the exec'd process. `argument`: JSON with `fd` (the control socket) and `isolation`."""
    config = json.loads(argument)
    control = socket.socket(fileno=config["fd"])
    plain = config["isolation"] == "plain"
    watched = _guard(control) if plain else None
    isolation.prctl(isolation.PR_SET_NO_NEW_PRIVS, 1)
    if plain:
        isolation.drop_capabilities()
    isolation.prctl(isolation.PR_SET_DUMPABLE, 0)
    import torch  # noqa: F401 (what every child needs, loaded once)

    from autokernel.judge import child  # noqa: F401

    if config["device"] == "cuda":
        _preload()
    gc.collect()
    gc.freeze()
    Zygote(control, plain, watched).serve()


def _preload() -> None:
    """What children on a GPU need, loaded without a CUDA context: Triton, and what Inductor's texts import.

    Those imports take a second or two, which every block of Inductor's would pay. Nothing compiles in a child: a pool
    of compiling processes, which Inductor starts where it may have several, would be started for nothing.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["TORCH_WARM_POOL"] = "0"
    import torch

    with mock.patch.object(torch.cuda, "is_available", lambda: True):  # asked itself, it counts devices: no fork then
        import torch._inductor.codegen.memory_planning
        import torch._inductor.codegen.multi_kernel
        import torch._inductor.select_algorithm
    from cuda.bindings import driver  # noqa: F401
    from torch._inductor.codecache import torch_key
    from triton.runtime import cache

    from autokernel.judge import child_cuda  # noqa: F401

    torch_key()  # these two read all files of their packages, which takes a second or two, and remember what they found
    cache.triton_key()


class Zygote:
    def __init__(self, control: socket.socket, plain: bool, watched: int | None) -> None:
        self.control, self.plain, self.watched = control, plain, watched
        self.child: int | None = None
        self.status = -1  # the child's wait status once it has ended
        self.asleep: dict[tuple[int, int], int] = {}  # when all was stopped: how often each thread had run
        self.as_made = settings_of_this_process()
        self.wake, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        """Answer the parent until it closes the socket; then kill everything and end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        self.control.send(Ack(True, bytes(protocol.NONCE_BYTES)).encode())
        poller = select.poll()
        for fd in (self.control.fileno(), self.wake, *([] if self.watched is None else [self.watched])):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            self.reap()
            if self.watched in ready:
                break
            if self.control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self.control, protocol.CONTROL_BYTES + 1, 253)
                if not data:
                    break
                self.answer(ControlRequest.decode(data), fds)
        self.kill_all()
        os._exit(0)

    def answer(self, request: ControlRequest, fds: list[int]) -> None:
        ok, awake = True, False
        if request.operation is Control.fork:
            ok = self.kill_all()
            if (
                settings_of_this_process() != self.as_made
            ):  # a child has the same user, and may change what is inherited
                os._exit(0)  # the parent makes another zygote
            _wipe(self.plain)
            self.fork(fds)
        elif request.operation is Control.freeze:
            ok = self.freeze()
        elif request.operation is Control.thaw:
            self.thaw()
        elif request.operation is Control.kill:
            ok = self.kill_all()
        elif request.operation is Control.still:
            awake = not self.still()
        for fd in fds:
            os.close(fd)
        self.control.send(Ack(ok, request.nonce, self.status, len(self.others()), awake).encode())

    def fork(self, fds: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            _become_child(self, fds)
        self.child, self.status = pid, -1

    def reap(self) -> None:
        """Collect the dead, the child's status among them. Drains the wake-up pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.child, self.status = None, status

    def others(self) -> dict[int, str]:
        """Process ids of everything the children started and not yet collected, with their states ("R", "T", ...)."""
        pids = descendants(os.getpid()) if self.plain else [p for p in _numbers("/proc") if p != 1]
        states = {pid: _state(pid) for pid in pids}
        return {pid: state for pid, state in states.items() if state is not None}

    def signal_all(self, number: signal.Signals) -> None:
        if not self.plain:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)  # all of this pid namespace but process 1, at one instant
            return
        for pid in self.others():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def freeze(self) -> bool:
        """Stop everything; True once every thread has stopped (or has ended).

        A process is shown as stopped by its first thread alone, so each thread is looked at.
        """
        until = time.monotonic() + STOP_SECONDS
        self.signal_all(signal.SIGSTOP)
        while not all(_stopped(pid) for pid in self.others()):
            if time.monotonic() > until:
                return False
            time.sleep(0.00002)
            self.signal_all(signal.SIGSTOP)
        self.asleep = self.runs()
        while (now := self.runs()) != self.asleep:  # a thread is shown as stopped a moment before it is off its core
            self.asleep = now
            if time.monotonic() > until:
                return False
        return True

    def still(self) -> bool:
        """Whether no thread has run since `freeze`, and this process has the settings that it was made with.

        A stop can be ended: by a timer that sends SIGCONT, for one.

        A child that was killed meanwhile is no matter of this: the next command finds it dead.
        """
        if settings_of_this_process() != self.as_made:
            return False
        if all(_stopped(pid) for pid in self.others()) and self.runs() == self.asleep:
            return True
        until = time.monotonic() + DYING_SECONDS
        while self.child is not None and time.monotonic() < until:
            time.sleep(0.001)
            self.reap()
        return self.child is None

    def runs(self) -> dict[tuple[int, int], int]:
        """How often every living thread has run so far: whoever ran and stopped again has one more."""
        found: dict[tuple[int, int], int] = {}
        for pid in self.others():
            for thread in _numbers(f"/proc/{pid}/task"):
                which = f"{pid}/task/{thread}"
                count = _times_run(which)
                if count is not None and (_state(which) or "X") not in "ZX":  # the dead are collected at any time
                    found[pid, thread] = count
        return found

    def thaw(self) -> None:
        self.signal_all(signal.SIGCONT)

    def kill_all(self) -> bool:
        """Kill everything; True once nothing is left. Stopping first keeps a fork bomb from outrunning the walk."""
        until = time.monotonic() + KILL_SECONDS
        while self.others():
            if time.monotonic() > until:
                return False
            if self.plain:
                self.signal_all(signal.SIGSTOP)
            self.signal_all(signal.SIGKILL)
            self.reap()
            if self.others():
                time.sleep(0.0005)
                self.reap()
        return True


def descendants(root: int) -> list[int]:
    """Process ids below `root`, by the kernel's own lists of children."""
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        for thread in _numbers(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += children
            queue += children
    return found


def _become_child(zygote: Zygote, fds: list[int]) -> NoReturn:
    """In the forked process: let go of all that is the zygote's, then run the child. Never returns."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        zygote.control.close()
        for fd in (zygote.wake, zygote.wake_writer, *([] if zygote.watched is None else [zygote.watched])):
            os.close(fd)
        if zygote.plain:
            isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)
        del zygote
        from autokernel.judge import child

        child.run(fds)
        code = 0
    finally:
        os._exit(code)


def _guard(control: socket.socket) -> int:
    """Plain isolation: split into a guard (this process) and the zygote, which returns with an end to watch.

    The guard holds no socket; it ends when the zygote has, after killing whatever is left below it.
    """
    isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1)
    alive, held = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(held)
        isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1)  # not inherited
        return alive  # readable (end of file) once the guard is gone
    control.close()
    os.close(alive)
    isolation.prctl(isolation.PR_SET_DUMPABLE, 0)
    while os.waitpid(-1, 0)[0] != pid:
        pass
    until = time.monotonic() + KILL_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        for orphan in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)
    sys.exit(0)


def _wipe(plain: bool) -> None:
    """Remove what an earlier child left for a later one: files in /tmp and /dev/shm, System V objects.

    In plain isolation those places are the user's own, and are left alone; TMPDIR is the sandbox's.
    """
    if plain:
        scratch = os.environ.get("TMPDIR")
        if scratch and os.path.isdir(scratch):
            _empty(scratch, [])
        return
    with open("/proc/self/mounts") as file:
        mounts = {line.split()[1] for line in file}
    for folder in ("/tmp", "/dev/shm"):
        _empty(folder, [os.path.relpath(mount, folder).split("/") for mount in mounts])
    _wipe_system_v()


def _empty(folder: str, mounts: Sequence[Sequence[str]]) -> None:
    """Remove everything below `folder` but mount points and the folders above them (`mounts`: relative to it, split).

    The tree is a candidate's making: it may be deeper than a path, or this process's stack, can be long. So a folder
    is not descended into: the folders in it are moved up, beside it, until there are none.
    """
    os.chmod(folder, 0o700)
    kept = {mount[0] for mount in mounts}
    for entry in list(os.scandir(folder)):
        if entry.name in kept:
            below = [mount[1:] for mount in mounts if mount[0] == entry.name and len(mount) > 1]
            if below:
                _empty(entry.path, below)
            continue
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(folder, entry.name)
        else:
            os.unlink(entry.path)


def _remove_tree(folder: str, name: str) -> None:
    """Remove the folder `name` of `folder`, however deep it is."""
    work = [os.path.join(folder, name)]
    number = 0
    while work:
        path = work[-1]
        os.chmod(path, 0o700)
        inner = []
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                number += 1
                lifted = os.path.join(folder, f"{secrets.token_hex(8)}-{number}")
                os.rename(entry.path, lifted)
                inner.append(lifted)
            else:
                os.unlink(entry.path)
        work.pop()
        os.rmdir(path)
        work += inner


def _wipe_system_v() -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    removers: dict[str, Callable[[int], object]] = {
        "shm": lambda i: libc.shmctl(i, 0, None),
        "sem": lambda i: libc.semctl(i, 0, 0, 0),
        "msg": lambda i: libc.msgctl(i, 0, None),
    }
    for kind, remove in removers.items():
        try:
            with open(f"/proc/sysvipc/{kind}") as file:
                identifiers = [int(line.split()[1]) for line in file.readlines()[1:]]
        except FileNotFoundError:
            continue  # a kernel without System V objects
        for identifier in identifiers:
            remove(identifier)


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _times_run(thread: str) -> int | None:
    """How often a thread ("PID/task/TID") was put on a core; None when it is gone.

    By its scheduler statistics where the kernel keeps them (half the cost of the other file), else by its switches.
    """
    counted = _read(f"/proc/{thread}/schedstat").split()
    if len(counted) == 3 and counted[2] != b"0":
        return int(counted[2])
    switches = [line.split()[1] for line in _read(f"/proc/{thread}/status").splitlines() if b"ctxt_switches" in line]
    return sum(map(int, switches)) if switches else None


def _read(path: str) -> bytes:
    """A small file of /proc; nothing where there is none (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 8192)
    except ProcessLookupError:
        return b""
    finally:
        os.close(fd)


def settings_of_this_process() -> tuple[object, ...]:
    """What a child inherits and another process of the same user can change: cores, priority, policy, limits."""
    limits = sorted((name, getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_"))
    return (
        os.sched_getaffinity(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        tuple((name, resource.getrlimit(number)) for name, number in limits),
    )


def _stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped, or gone."""
    states = (_state(f"{pid}/task/{thread}") for thread in _numbers(f"/proc/{pid}/task"))
    return all(state is None or state in "TtZX" for state in states)


def _state(which: int | str) -> str | None:
    """The state letter of a process (or "PID/task/TID"); None when it is gone."""
    fields = _read(f"/proc/{which}/stat").rpartition(b")")[2].split()
    return chr(fields[0][0]) if fields else None
