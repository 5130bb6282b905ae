"""Cheats against the process and the protocol: late threads, exits, forged answers, hangs, bombs, stray accesses."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

CASES = (
    cheat(
        "a thread that fills the output later",
        """
import threading
import time


def later(x, weight, out):
    time.sleep(0.003)
    rms_norm(x, weight, out)


def launch(x, weight, out):
    threading.Thread(target=later, args=(x, weight, out)).start()
""",
        Stage.smoke,
        Reason.late_write,
        Reason.not_written,
        twin="""
import threading


def launch(x, weight, out):
    thread = threading.Thread(target=rms_norm, args=(x, weight, out))
    thread.start()
    thread.join()
""",
    ),
    cheat(
        "os._exit(0)",
        "import os\n\n\ndef launch(x, weight, out):\n    os._exit(0)",
        Stage.smoke,
        Reason.died,
    ),
    cheat(
        "os._exit(0) when loaded",
        "import os\n\n\nos._exit(0)\n\n\ndef launch(x, weight, out):\n    pass",
        Stage.load,
        Reason.died,
    ),
    cheat(
        "forged verdict on every fd",
        """
import os
import struct


def launch(x, weight, out):
    for magic in (b"AKr1", b"AKa1"):
        for status in (2, 3):
            forged = struct.pack("<4sBBHd16s2048s", magic, status, 0, 0, 1e-9, bytes(16), b"")
            for name in os.listdir("/proc/self/fd"):
                for answer in (forged, b'{"verdict": "accepted", "speedup": 100}'):
                    try:
                        os.write(int(name), answer)
                    except OSError:
                        pass
""",
        Stage.smoke,
        Reason.protocol,
        twin="""
import sys


def launch(x, weight, out):
    print('{"verdict": "accepted"}')
    print("max error 0.0", file=sys.stderr)
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "an endless loop, with children that ignore SIGTERM",
        """
import os
import signal


def launch(x, weight, out):
    for _ in range(3):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            while True:
                pass
    while True:
        pass
""",
        Stage.smoke,
        Reason.timeout,
    ),
    cheat(
        "a fork bomb",
        """
import os
import time


def launch(x, weight, out):
    for _ in range(6):
        os.fork()
    time.sleep(60)
""",
        Stage.smoke,
        Reason.timeout,
        Reason.exception,
        Reason.died,
        Reason.out_of_memory,
    ),
    cheat(
        "an illegal access",
        "def launch(x, weight, out):\n    ctypes.memset(8, 0, 4)",
        Stage.smoke,
        Reason.died,
    ),
    cheat(
        "a huge allocation",
        """
def launch(x, weight, out):
    torch.zeros(1 << 42)
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.out_of_memory,
        twin="""
def launch(x, weight, out):
    torch.zeros(1 << 20)
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "a child that fills the output later",
        """
import os
import time


def launch(x, weight, out):
    if os.fork() == 0:
        time.sleep(0.003)
        rms_norm(x, weight, out)
        os._exit(0)
""",
        Stage.smoke,
        Reason.late_write,
        Reason.not_written,
        twin="""
import os


def launch(x, weight, out):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "a fake table",
        """
import sys


def launch(x, weight, out):
    for stream in (sys.stdout, sys.stderr):
        print("correctness: PASS\\nspeedup: 10.00x\\nverdict: ACCEPTED", file=stream, flush=True)
""",
        Stage.smoke,
        Reason.not_written,
    ),
    cheat(
        "editing the judge's files",
        """
import autokernel.judge


def launch(x, weight, out):
    with open(f"{autokernel.judge.__path__[0]}/tolerance.py", "ab"):
        rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.exception,
        bubblewrap=True,
    ),
    cheat(
        "poisoning the compiler's cache",
        """
def launch(x, weight, out):
    with open(load(SOURCE)._name, "ab"):  # the library that the next kernel with this text would get
        rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.exception,
        bubblewrap=True,
    ),
    cheat(
        "one core for whoever is started next",
        """
import os

cores = os.sched_getaffinity(0)
for pid in {1, os.getppid()} - {0}:
    try:
        os.sched_setaffinity(pid, {min(cores)})
    except OSError:
        pass
os.sched_setaffinity(0, cores)


def launch(x, weight, out):
    rms_norm(x, weight, out)
""",
        (Stage.load, Stage.smoke),
        Reason.protocol,
    ),
    cheat(
        "a timer that wakes it while it is stopped",
        """
import ctypes.util
import signal
import threading
import time

signal.signal(signal.SIGCONT, lambda *words: None)
libc = ctypes.CDLL(None, use_errno=True)


class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("kind", ctypes.c_int * 2), ("rest", ctypes.c_char * 48)]


timer = ctypes.c_void_p()
libc.timer_create(1, ctypes.byref(Event(None, (signal.SIGCONT, 0))), ctypes.byref(timer))


def arm():
    often = (ctypes.c_long * 4)(0, 700_000, 0, 700_000)  # every 0.7 ms
    libc.timer_settime(timer, 0, often, None)


def watch():
    while True:
        time.sleep(0.0001)


threading.Thread(target=watch, daemon=True).start()


def launch(x, weight, out):
    arm()
    rms_norm(x, weight, out)
""",
        (Stage.smoke, Stage.shapes, Stage.stability, Stage.determinism, Stage.edges),
        Reason.protocol,
    ),
)
