"""One writer a run: flock on a file that names its owner. The kernel drops the lock with the process, even on SIGKILL.

The file stays behind and means nothing by itself; only the lock does. Descriptors are not inherited by programs we
start, so a sandbox that outlives its parent can't hold a run.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path

from autokernel.errors import RunLocked, RunReadOnly

NAME = ".lock"


class RunLock:
    """Held from construction until `release`. Raises RunLocked, naming the owner; RunReadOnly."""

    def __init__(self, run: Path) -> None:
        try:
            self._descriptor = os.open(run / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunReadOnly(path=run, detail=error.strerror) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = describe(_content(self._descriptor))
            os.close(self._descriptor)
            raise RunLocked(path=run, owner=owner) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _me(), 0)

    def release(self) -> None:
        """Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _content(descriptor: int) -> bytes:
    """The owner writes its name just after it has the lock: wait a moment for that."""
    for _ in range(20):
        if content := os.pread(descriptor, 4096, 0):
            return content
        time.sleep(0.02)
    return b""


def describe(content: bytes) -> str:
    """ "process 4711 on host (autokernel resume runs/x), since 2026-01-01T10:00:00+00:00"."""
    try:
        owner = json.loads(content)
        return f"process {owner['pid']} on {owner['host']} ({owner['command']}), since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process (it is only just taking the lock)"


def _me() -> bytes:
    command = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return json.dumps(
        {"pid": os.getpid(), "host": socket.gethostname(), "command": command[:200], "since": now}
    ).encode()
