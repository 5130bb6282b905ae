"""Cheats against streams, clocks, the compiler's cache and the device: late work, lies, faults, hangs, a search."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.cuda.kernels import ANY_STAGE, cheat

_LATE = (
    Reason.late_write,
    Reason.not_written,
    Reason.stale_output,
    Reason.wrong_values,
    Reason.wrong_special_values,
    Reason.exception,
    Reason.time_disagrees,
)
_TWENTY_TIMES = "for _ in range(20):\n        rms_norm(x, weight, out)"

CASES = (
    cheat(
        "work on a side stream that is never joined",
        """
@triton.jit
def dawdle(counter, steps):
    for _ in range(steps):
        tl.atomic_add(counter, 1)


side = torch.cuda.Stream()
counter = None


def launch(x, weight, out):
    global counter
    if counter is None:
        counter = torch.zeros(1, dtype=torch.int32, device=x.device)
        torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(side):
        dawdle[(1,)](counter, 20_000)
        rms_norm(x, weight, out)
""",
        ANY_STAGE,
        *_LATE,
        twin="""
side = torch.cuda.Stream()


def launch(x, weight, out):
    here = torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        rms_norm(x, weight, out)
    here.wait_stream(side)
""",
        task="rms_norm_bf16",
        level="full",
        suspect=True,
    ),
    cheat(
        "patched events, clocks, synchronize and do_bench, around slow work",
        f"""
import time

import triton.testing


class Event:
    def __init__(self, *words, **options):
        pass

    def record(self, stream=None):
        pass

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1e-6


def nothing(*words, **options):
    pass


torch.cuda.Event = torch.Event = Event
torch.cuda.synchronize = torch.cuda.Stream.synchronize = nothing
torch.cuda.Stream.query = lambda self: True
torch.allclose = torch.equal = lambda *words, **options: True
triton.testing.do_bench = lambda *words, **options: 1e-6
time.perf_counter = time.monotonic = time.time = lambda: 0.0


def launch(x, weight, out):
    {_TWENTY_TIMES}
""",
        ANY_STAGE,
        *_LATE,
        Reason.too_slow,
        Reason.time_impossible,
        Reason.protocol,
        task="rms_norm_bf16",
        level="full",
        suspect=True,
    ),
    cheat(
        "poisoning the compiler's cache",
        """
import os
import pathlib


def spoil(folder):
    spoiled = 0
    for path in pathlib.Path(folder).rglob("*"):
        if path.suffix in (".cubin", ".ptx", ".json", ".so"):
            try:
                path.write_bytes(b"garbage")
                spoiled += 1
            except OSError:
                continue
    return spoiled


def launch(x, weight, out):
    if type(x) is torch.Tensor:  # else it is being compiled
        if spoil(os.environ["TRITON_CACHE_DIR"]) == 0:
            raise PermissionError("no file of a compiler's cache can be written")
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.exception,
        Reason.died,
    ),
    cheat(
        "an illegal access",
        """
@triton.jit
def stray(out, far):
    tl.store(out + far, 1.0)


def launch(x, weight, out):
    stray[(1,)](out, 1 << 44)
""",
        Stage.smoke,
        Reason.exception,
        Reason.died,
    ),
    cheat(
        "an endless kernel",
        """
@triton.jit
def wait_for(flag):
    while tl.atomic_add(flag, 0) == 0:
        pass


def launch(x, weight, out):
    rms_norm(x, weight, out)
    wait_for[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
""",
        Stage.smoke,
        Reason.timeout,
        twin="""
@triton.jit
def wait_for(flag):
    while tl.atomic_add(flag, 0) == 0:
        pass


def launch(x, weight, out):
    rms_norm(x, weight, out)
    wait_for[(1,)](torch.ones(1, dtype=torch.int32, device=x.device))
""",
    ),
    cheat(
        "a search of the shared mapping for the expected values",
        """
class Far:  # a place in the device's memory, as Triton takes pointers
    dtype = torch.float32

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


@triton.jit
def grab(start, found, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(found + places, tl.load(start + places, mask=places < count, other=0.0), mask=places < count)


def launch(x, weight, out):
    right = torch.empty_like(out)
    rms_norm(x, weight, right)
    for tensor in (x, weight, out):
        block = tensor.data_ptr() // (2 << 20) * (2 << 20)  # what the driver maps, at least
        count = (2 << 20) // 4
        seen = torch.empty(count, dtype=torch.float32, device=x.device)
        grab[(count // 1024,)](Far(block), seen, count, BLOCK=1024)
        if type(x) is not torch.Tensor:  # it is being compiled
            continue
        first = (seen[:-1] - right[0, 0]).abs() + (seen[1:] - right[0, 1]).abs() < 1e-5
        for place in first.nonzero().flatten().tolist():
            if place + out.numel() <= count:
                values = seen[place : place + out.numel()].view(out.shape)
                if torch.allclose(values, right, rtol=1e-5, atol=1e-6):
                    out.copy_(values)
                    return
    if type(x) is torch.Tensor:
        raise LookupError("the expected values are not in the memory that is mapped here")
""",
        Stage.smoke,
        Reason.exception,
        Reason.died,
    ),
    cheat(
        "more memory than the device has",
        """
def launch(x, weight, out):
    torch.empty(1 << 45, dtype=torch.uint8, device=x.device)
    rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.out_of_memory,
        twin="""
def launch(x, weight, out):
    torch.empty(1 << 20, dtype=torch.uint8, device=x.device)
    rms_norm(x, weight, out)
""",
    ),
)
