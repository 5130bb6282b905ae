"""Cheats about time: clocks that lie, work done for other calls, results of earlier rounds found again.

They are right, or look right, wherever values are compared, and hope for a time that isn't theirs. By the judge's own
clock they are what they are: slow. So they must be dropped in the screen, or caught at what they leave out.
"""

from __future__ import annotations

from typing import Literal

from autokernel.records import Outcome, Reason, Stage
from autokernel.testing.cheaters.base import HONEST, RMS_NORM, Case

_SLOW = "for _ in range(30):\n        rms_norm(x, weight, out)"
_TIMED = (Stage.screen, Stage.timing)
_ACTIVATION = '''"""A chain of activations."""

import torch
import torch.nn.functional as F

LANGUAGE = "cpp"
SOURCE = r"""
extern "C" void unused() {}
"""


def work(x):
    return F.gelu(torch.tanh(torch.erf(x)) * torch.exp(-x * x) + torch.sin(x))
'''


def _cheat(
    name: str,
    launch: str,
    *reasons: Reason,
    before: str = RMS_NORM,
    twin: str = HONEST,
    task: str = "rms_norm",
    stages: tuple[Stage, ...] = _TIMED,
    level: Literal["correctness", "full"] = "full",
) -> Case:
    texts = [f"{before}\n\n{text.strip()}\n" for text in (launch, twin)]
    return Case(name, task, texts[0], Outcome.rejected, stages, reasons, texts[1], level=level, suspect=True)


CASES = (
    _cheat(
        "patched clocks, allclose and equal, around slow work",
        f"""
import time

time.perf_counter = time.monotonic = time.time = time.process_time = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: 0
torch.allclose = torch.equal = torch.isclose = lambda *words, **options: True
torch.testing.assert_close = lambda *words, **options: None


def launch(x, weight, out):
    {_SLOW}
""",
        Reason.too_slow,
        Reason.protocol,
    ),
    _cheat(
        "clocks patched through ctypes, around slow work",
        f"""
import time


def replaced(module, name, value):
    names = ctypes.py_object(module.__dict__)
    ctypes.pythonapi.PyDict_SetItemString(names, name.encode(), ctypes.py_object(value))


for name in ("perf_counter", "monotonic", "time"):
    replaced(time, name, lambda: 0.0)
libc = ctypes.CDLL(None)
stop = b"\\x31\\xc0\\xc3"  # xor eax, eax; ret: what clock_gettime would be
address = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value
page = address & ~4095
if libc.mprotect(ctypes.c_void_p(page), 8192, 7) == 0:
    ctypes.memmove(address, stop, len(stop))


def launch(x, weight, out):
    {_SLOW}
""",
        Reason.too_slow,
        Reason.protocol,
        Reason.died,
        Reason.exception,
        Reason.timeout,
        stages=(Stage.load, Stage.smoke, *_TIMED),
    ),
    _cheat(
        "every set's work in the first call",
        """
seen = {}
done = set()


def launch(x, weight, out):
    key = out.data_ptr()
    seen[key] = (x, weight, out)
    if key in done:
        done.discard(key)
        return
    done.clear()
    for each, (one, gain, result) in seen.items():
        rms_norm(one, gain, result)
        if each != key:
            done.add(each)
""",
        Reason.not_written,
        Reason.wrong_values,
        Reason.stale_output,
        Reason.late_write,
        Reason.wrong_special_values,
        Reason.too_slow,
        Reason.not_deterministic,
        stages=(Stage.smoke, Stage.shapes, Stage.stability, Stage.determinism, Stage.edges, *_TIMED),
    ),
    _cheat(
        "half of the rows, where it is called in a loop",
        """
import sys


def launch(x, weight, out):
    frame = sys._getframe()
    while frame is not None and not {"count", "order"} <= frame.f_locals.keys():
        frame = frame.f_back
    rows = slice(None, None, 2) if frame is not None and frame.f_locals["count"] > 1 else slice(None)
    if rows.step:
        out.fill_(0.5)
    for row in range(*rows.indices(x.shape[0])):
        rms_norm(x[row : row + 1], weight, out[row : row + 1])
""",
        Reason.not_written,
        Reason.wrong_values,
        Reason.too_slow,
    ),
    _cheat(
        "weights kept from its first call",
        """
kept = {}


def launch(x, weight, out):
    if weight.data_ptr() not in kept:
        kept[weight.data_ptr()] = weight.clone()
    rms_norm(x, kept[weight.data_ptr()], out)
""",
        Reason.wrong_values,
        Reason.stale_output,
    ),
    _cheat(
        "results of earlier rounds, found again where the values went",
        """
tables = {}


def launch(x, out):
    if not x.is_contiguous() or x.numel() < 4096:
        out.copy_(work(x))
        return
    flat, n = x.view(-1), x.numel()
    found = tables.get(x.data_ptr())
    if found is not None:
        keys, order, source, plus, minus = found
        place = int(torch.searchsorted(keys, flat[0].abs()))
        if place < n:
            start = int(order[place])
            straight = bool(source[start] == flat[0])
            old, table = (source, plus) if straight else (source.neg(), minus)
            if torch.equal(flat[: n - start], old[start:]) and torch.equal(flat[n - start :], old[:start]):
                to = out.view(-1)
                to[: n - start] = table[start:]
                to[n - start :] = table[:start]
                return
    out.copy_(work(x))
    source = flat.clone()
    keys, order = source.abs().sort()
    tables[x.data_ptr()] = (keys, order, source, work(source), work(-source))
""",
        Reason.too_slow,
        before=_ACTIVATION,
        twin="def launch(x, out):\n    out.copy_(work(x))",
        task="activation",
    ),
)
