"""The process that compiling is forked from: it imports torch and triton once and runs no candidate code itself.

It reads jobs from stdin, one JSON object a line ({"id", "folder", "deadline"}, or {"first": id} to move one forward),
runs as many at once as it was told, and answers each with a line {"id", "end", "status", "seconds"}. Between
it and a worker stands a guard: it shuts the worker in, kills it and everything it started at the deadline, and tells
how it ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from autokernel.languages.triton import fence

ENDED, DIED, LATE = "ended", "died", "late"
_CODES = {0: ENDED, 3: LATE}


def main(argument: str) -> NoReturn:
    """Entry of the exec'd process. `argument`: JSON with work, parallel, isolation and memory_bytes."""
    config = json.loads(argument)
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    fence.prctl(fence.PR_SET_CHILD_SUBREAPER, 1)
    link = _preload()
    secluded = config["isolation"] == "bubblewrap" and _can_seclude(Path(config["work"]))
    zygote = Zygote(config, requests, answers, link, secluded)
    zygote.say({"hello": True, "secluded": secluded, "launchers": link is not None})
    zygote.serve()


def _preload() -> str | None:
    """Import what every worker needs, compute what Triton computes once; returns the folder to link launchers with."""
    import triton
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.runtime.cache import triton_key

    from autokernel.languages.triton import binaries, standin, worker  # noqa: F401

    FakeTensorMode()  # imports what it needs late, which must see the real torch.cuda
    triton_key()  # reads all of Triton, 0.3 s
    link = tempfile.mkdtemp(prefix="autokernel-link-")
    made = standin.empty_libcuda(link)
    gc.collect()
    gc.freeze()
    return link if made and triton.backends.backends.get("nvidia") else None


class Zygote:
    def __init__(self, config: dict[str, Any], requests: int, answers: int, link: str | None, secluded: bool) -> None:
        self.work, self.parallel = Path(config["work"]), int(config["parallel"])
        self.memory_bytes: int | None = config["memory_bytes"]
        self.requests, self.answers, self.link, self.secluded = requests, answers, link, secluded
        self.queue: list[dict[str, Any]] = []
        self.running: dict[int, tuple[int, float]] = {}  # guard's pid → job, when it began
        self.wake, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        """Until stdin closes; then everything is killed."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        rest = b""
        while True:
            ready, _, _ = select.select([self.requests, self.wake], [], [])
            self.reap()
            if self.requests in ready:
                data = os.read(self.requests, 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.accept(json.loads(line))
            while self.queue and len(self.running) < self.parallel:
                self.start(self.queue.pop(0))
        kill_below(os.getpid())
        os._exit(0)

    def accept(self, request: dict[str, Any]) -> None:
        if "first" not in request:
            self.queue.append(request)
            return
        self.queue.sort(key=lambda job: job["id"] != request["first"])  # stable

    def start(self, job: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for fd in (self.requests, self.answers, self.wake, self.wake_writer):
                    os.close(fd)
                os._exit(self.guard(Path(job["folder"]), float(job["deadline"])))
            except BaseException as error:
                os.write(2, f"guard: {type(error).__name__}: {error}\n".encode())
                os._exit(1)
        self.running[pid] = (job["id"], time.monotonic())

    def reap(self) -> None:
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
            if pid in self.running:
                code = os.waitstatus_to_exitcode(status)
                number, began = self.running.pop(pid)
                seconds = time.monotonic() - began
                self.say({"id": number, "end": _CODES.get(code, DIED), "status": code, "seconds": seconds})

    def say(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self.answers, data) :]

    def guard(self, folder: Path, deadline: float) -> int:
        """In a child: run a worker to its end or its deadline. Returns the exit code: 0 ended, 3 late, else died."""
        os.setsid()
        fence.prctl(fence.PR_SET_CHILD_SUBREAPER, 1)
        until = time.monotonic() + deadline
        if self.secluded:
            fence.seclude(self.work, folder)
        pid = os.fork()
        if pid == 0:
            _become_worker(folder, self.link, self.memory_bytes)
        watch = os.pidfd_open(pid)
        ended = bool(select.select([watch], [], [], max(0.0, until - time.monotonic()))[0])
        if not ended:
            os.kill(pid, signal.SIGKILL)  # secluded: process 1 of its namespace, so all of it ends
        _, status = os.waitpid(pid, 0)
        kill_below(os.getpid())
        if not ended:
            return 3
        return 0 if status == 0 else min(255, 100 + (status & 0x7F))


def _become_worker(folder: Path, link: str | None, memory_bytes: int | None) -> NoReturn:
    from autokernel.languages.triton import worker

    code = 1
    try:
        fence.prctl(fence.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fence.give_up_privileges()
        fence.limit(memory_bytes)
        worker.run(folder, link)
        code = 0
    except BaseException as error:
        os.write(2, f"worker: {type(error).__name__}: {error}\n".encode())
    os._exit(code)


def _can_seclude(work: Path) -> bool:
    """Whether a process in this sandbox may shut itself in further; tried in a child."""
    own = work / "probe"
    own.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            fence.seclude(work, own)
            os._exit(0)
        except OSError as error:
            os.write(2, f"workers see each other's folders: {error}\n".encode())
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    own.rmdir()
    return status == 0


def kill_below(root: int) -> None:
    """Kill every descendant of process `root`, this one or a subreaper, and collect those that are our children."""
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        left = descendants(root)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.005)


def descendants(root: int) -> list[int]:
    """Living processes below `root`, by /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    parents[int(name)] = int(fields[1])
    found = {root}
    grew = True
    while grew:
        grew = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                grew = True
    return sorted(found - {root})


if __name__ == "__main__":
    main(sys.argv[1])
