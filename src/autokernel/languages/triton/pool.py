"""This process's side of compiling: one zygote, many jobs. What comes back is data; nothing of it is unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autokernel.errors import CompilerProcessDied
from autokernel.languages.triton import fence

START_SECONDS = 180.0


@dataclass(frozen=True)
class Ended:
    """How a worker ended: "ended" by itself, "late" at its deadline, else "died" (`status` says of what)."""

    end: str
    status: int
    seconds: float


class Pool:
    """Owns a zygote. `work`: the folder that it may write to; jobs' folders lie in it. Thread-safe.

    The zygote is started by the thread that reads its answers: Linux ties its death to that thread, which lives until
    `close`.
    """

    def __init__(self, work: Path, isolation: fence.Isolation, parallel: int, memory_bytes: int | None) -> None:
        self.isolation = isolation
        self.secluded = False  # whether workers see nothing of each other's folders; known once the zygote has started
        self._config = {
            "work": str(work),
            "parallel": parallel,
            "isolation": isolation,
            "memory_bytes": memory_bytes,
        }
        self._work = work
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Ended]] = {}
        self._count = 0
        self._problem: str | None = None
        self._started: Future[dict[str, Any]] = Future()
        self._spawned = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._live, name="autokernel-triton", daemon=True)
        self._thread.start()

    def submit(self, folder: Path, deadline: float) -> tuple[int, Future[Ended]]:
        """Do the job in `folder`; `deadline` in seconds from when its worker starts. Raises `CompilerProcessDied`."""
        self._spawned.wait()  # not until it is ready: what is sent before then waits in its pipe
        future: Future[Ended] = Future()
        with self._lock:
            if self._problem is not None:
                raise CompilerProcessDied(detail=self._problem)
            self._count += 1
            number = self._count
            self._pending[number] = future
        self._send({"id": number, "folder": str(folder), "deadline": deadline})
        return number, future

    def first(self, number: int) -> None:
        """Move a waiting job to the front."""
        self._send({"first": number})

    def wait_started(self) -> None:
        """Until the zygote is ready to compile. Raises `CompilerProcessDied`."""
        try:
            hello = self._started.result(timeout=START_SECONDS)
        except TimeoutError as error:
            self.close()
            raise CompilerProcessDied(detail=f"not ready after {START_SECONDS:g} s") from error
        self.secluded = bool(hello["secluded"])

    def close(self) -> None:
        """Kill every process; jobs that wait fail. Idempotent."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError), self._lock:
                process.stdin.close()
        self._thread.join(timeout=30)
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join(timeout=30)

    def _send(self, request: dict[str, Any]) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._lock:  # gone: the reader fails what is pending
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

    def _live(self) -> None:
        """The zygote's life, from start to end, in a thread of its own."""
        log = os.memfd_create("autokernel-triton-log", os.MFD_CLOEXEC)
        problem = "closed"
        try:
            self._process = subprocess.Popen(
                fence.command(self.isolation, self._work, self._config),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=fence.environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for the parent to handle
                cwd="/",
            )
            self._spawned.set()
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._hear(json.loads(line))
            status = self._process.wait()
            words = os.pread(log, 4000, 0).decode("utf-8", "replace").strip()
            problem = words[-800:] or f"status {status}"
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            os.close(log)
            self._fail(problem)

    def _hear(self, answer: dict[str, Any]) -> None:
        if "hello" in answer:
            self._started.set_result(answer)
            return
        with self._lock:
            future = self._pending.pop(answer["id"])
        future.set_result(Ended(answer["end"], answer["status"], answer["seconds"]))

    def _fail(self, problem: str) -> None:
        with self._lock:
            self._problem = problem
            pending, self._pending = list(self._pending.values()), {}
        self._spawned.set()
        for future in (*pending, *([] if self._started.done() else [self._started])):
            future.set_exception(CompilerProcessDied(detail=problem))  # type: ignore[attr-defined]
