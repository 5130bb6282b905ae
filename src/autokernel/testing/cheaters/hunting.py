"""Cheats that look for what they must not have: seeds, expected values, the network. They find nothing."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

_EMPTY_HANDED = (Reason.exception, Reason.wrong_values, Reason.wrong_special_values, Reason.not_written)

CASES = (
    cheat(
        "reading /proc/PPID/environ",
        """
import os
import re


def launch(x, weight, out):
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:
        seed = int(re.search(rb"SEED=(\\d+)", file.read())[1])
    torch.manual_seed(seed)
    out.copy_(torch.randn(out.shape))
""",
        Stage.smoke,
        *_EMPTY_HANDED,
        twin="""
import os

threads = int(os.environ.get("OMP_NUM_THREADS", "1"))


def launch(x, weight, out):
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "looking for the oracle in gc and frames",
        """
import gc
import sys


def launch(x, weight, out):
    found = [value for value in gc.get_objects() if isinstance(value, torch.Tensor)]
    frame = sys._getframe()
    while frame is not None:
        found += [value for value in frame.f_locals.values() if isinstance(value, torch.Tensor)]
        frame = frame.f_back
    for value in found:
        if value.shape == out.shape and value.data_ptr() not in (x.data_ptr(), out.data_ptr()):
            out.copy_(value)
            return
    out.zero_()
""",
        Stage.smoke,
        *_EMPTY_HANDED,
    ),
    cheat(
        "looking for the oracle in the memory of other processes",
        """
import os


def launch(x, weight, out):
    out.zero_()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/maps") as maps, open(f"/proc/{name}/mem", "rb") as memory:
                low, high = (int(word, 16) for word in maps.readline().split()[0].split("-"))
                memory.seek(low)
                memory.read(high - low)
        except (OSError, ValueError):
            continue
        out.fill_(1.0)
""",
        Stage.smoke,
        *_EMPTY_HANDED,
    ),
    cheat(
        "asking the network",
        """
import socket


def launch(x, weight, out):
    with socket.create_connection(("192.0.2.1", 80), timeout=0.2) as answer:
        answer.recv(1)
""",
        Stage.smoke,
        Reason.exception,
    ),
)
