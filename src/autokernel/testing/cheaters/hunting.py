"""Cheats that look for what they must not have: seeds, expected values, the network. They find nothing.

Each one that did find it would answer rightly, and raises otherwise: were one accepted, the boundary would leak.
"""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

CASES = (
    cheat(
        "reading /proc/PPID/environ",
        """
import os
import re


def launch(x, weight, out):
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:
        seed = int(re.search(rb"SEED=(\\d+)", file.read())[1])
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.exception,
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
            if torch.allclose(value, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight, atol=1e-4):
                out.copy_(value)
                return
    raise LookupError("the expected values are not in this process")
""",
        Stage.smoke,
        Reason.exception,
    ),
    cheat(
        "looking for the oracle in the memory of other processes",
        """
import os


def launch(x, weight, out):
    rms_norm(x, weight, out)
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/maps") as maps, open(f"/proc/{name}/mem", "rb") as memory:
                low, high = (int(word, 16) for word in maps.readline().split()[0].split("-"))
                memory.seek(low)
                if memory.read(high - low):
                    return
        except (OSError, ValueError):
            continue
    raise PermissionError("no other process can be read")
""",
        Stage.smoke,
        Reason.exception,
        bubblewrap=True,
    ),
    cheat(
        "looking for the oracle in the memory of the judge",
        """
import os


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def launch(x, weight, out):
    rms_norm(x, weight, out)
    starter = os.getppid()
    for pid in (starter, parent_of(starter) if starter else 0):
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                low, high = (int(word, 16) for word in maps.readline().split()[0].split("-"))
                memory.seek(low)
                if memory.read(high - low):
                    return
        except (OSError, ValueError):
            continue
    raise PermissionError("neither the judge nor what it starts kernels from can be read")
""",
        Stage.smoke,
        Reason.exception,
    ),
    cheat(
        "asking the network",
        """
import socket


def launch(x, weight, out):
    with socket.create_connection(("192.0.2.1", 80), timeout=0.2) as answer:
        answer.recv(1)
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.exception,
        bubblewrap=True,
    ),
    cheat(
        "a search of the shared mapping for the expected values",
        """
import torch.nn.functional as F


def launch(x, weight, out):
    wanted = F.rms_norm(x, (x.shape[-1],), weight, 1e-5)
    needle = bytes(wanted.flatten()[:8].view(torch.uint8).tolist())
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            if "autokernel" not in line:
                continue
            low, high = (int(word, 16) for word in line.split()[0].split("-"))
            memory.seek(low)
            if needle in memory.read(high - low):
                out.copy_(wanted)
                return
    raise LookupError("the expected values are not in what is shared")
""",
        Stage.smoke,
        Reason.exception,
    ),
)
