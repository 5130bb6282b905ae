"""Cheats against the judge's questions: answers before the work, work after the answer, no way left to answer.

Each looks finished to whoever takes a kernel's word for it; the outputs, and who has run, say otherwise.
"""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

CASES = (
    cheat(
        "done, with the right nonce, before it has worked",
        """
import socket
import sys
import time

from autokernel.judge.protocol import Reply, Status

said = []
send = socket.socket.send


def only_once(channel, data, *flags):
    return len(data) if any(nonce in data for nonce in said) else send(channel, data, *flags)


socket.socket.send = only_once


def launch(x, weight, out):
    frame = sys._getframe()
    while not {"channel", "request"} <= frame.f_locals.keys():
        frame = frame.f_back
    nonce = frame.f_locals["request"].nonce
    send(frame.f_locals["channel"], Reply(Status.done, nonce, claimed_seconds=1e-9, text="").encode())
    said.append(nonce)
    time.sleep(0.003)
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.late_write,
        Reason.not_written,
        Reason.protocol,
    ),
    cheat(
        "closing every descriptor",
        """
import os


def launch(x, weight, out):
    rms_norm(x, weight, out)
    os.closerange(0, 4096)
""",
        Stage.smoke,
        Reason.died,
        Reason.protocol,
    ),
    cheat(
        "a grandchild that fills the output later",
        """
import os
import time


def launch(x, weight, out):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.05)
            rms_norm(x, weight, out)
        os._exit(0)
    os.wait()
""",
        Stage.smoke,
        Reason.late_write,
        Reason.not_written,
        twin="""
import os


def launch(x, weight, out):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "an alarm that fills the output later",
        """
import signal

work = []


def later(*words):
    while work:
        rms_norm(*work.pop())


signal.signal(signal.SIGALRM, later)


def launch(x, weight, out):
    work.append((x, weight, out))
    signal.setitimer(signal.ITIMER_REAL, 0.003)
""",
        Stage.smoke,
        Reason.late_write,
        Reason.not_written,
        twin="""
import signal


def launch(x, weight, out):
    signal.setitimer(signal.ITIMER_REAL, 1000)
    rms_norm(x, weight, out)
    signal.setitimer(signal.ITIMER_REAL, 0)
""",
    ),
    cheat(
        "writing into the process that others are started from",
        """
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ATTACH = 16


def launch(x, weight, out):
    rms_norm(x, weight, out)
    for pid in {1, os.getppid()} - {0, os.getpid()}:
        if libc.ptrace(ATTACH, pid, None, None) == 0:
            return
        try:
            with open(f"/proc/{pid}/mem", "r+b"):
                return
        except OSError:
            continue
    raise PermissionError("no other process can be written to")
""",
        Stage.smoke,
        Reason.exception,
    ),
)
