"""Honest, but odd: what a suspicious judge might mistake for a cheat, and must accept."""

from __future__ import annotations

from autokernel.testing.cheaters import models, odd_native
from autokernel.testing.cheaters.base import honest

CASES = (
    honest("plain", "def launch(x, weight, out):\n    rms_norm(x, weight, out)"),
    honest(
        "another kernel for other shapes",
        """
def launch(x, weight, out):
    if x.shape[-1] % 8 == 0:
        rms_norm(x, weight, out)
    else:
        out.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight)
""",
    ),
    honest(
        "a workspace kept by shape",
        """
workspace = {}


def launch(x, weight, out):
    if x.shape not in workspace:
        workspace[x.shape] = torch.empty(x.shape)
    rms_norm(x, weight, workspace[x.shape])
    out.copy_(workspace[x.shape])
""",
    ),
    honest(
        "try, except ImportError",
        """
try:
    import a_package_that_is_not_here as fast
except ImportError:
    fast = None


def launch(x, weight, out):
    rms_norm(x, weight, out)
""",
    ),
    honest(
        "more accurate than eager",
        """
def launch(x, weight, out):
    wide = x.double()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight)
""",
    ),
    honest(
        "exp2 with its scale folded in",
        """
def launch(x, out):
    scaled = x * 1.4426950408889634
    e = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    torch.div(e, e.sum(-1, keepdim=True), out=out)
""",
        "softmax",
    ),
    honest(
        "refuses strides that are not its task's",
        """
def launch(x, weight, out):
    if not x.is_contiguous():
        raise ValueError("contiguous rows only")
    rms_norm(x, weight, out)
""",
    ),
    honest(
        "one that says what it serves", 'SERVES = "task"\n\n\ndef launch(x, weight, out):\n    rms_norm(x, weight, out)'
    ),
    honest(
        "two threads, joined before it returns",
        """
import threading


def launch(x, weight, out):
    x, middle = x.contiguous(), x.shape[0] // 2
    parts = [threading.Thread(target=rms_norm, args=(x[rows], weight, out[rows]))
             for rows in (slice(0, middle), slice(middle, None))]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
""",
    ),
    honest(
        "tuned on its first call for a shape",
        """
import time

best = {}


def plain(x, weight, out):
    out.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight)


def launch(x, weight, out):
    if x.shape not in best:
        times = []
        for way in (rms_norm, plain):
            begin = time.perf_counter()
            way(x, weight, out)
            times.append(time.perf_counter() - begin)
        best[x.shape] = rms_norm if times[0] < times[1] else plain
        best[x.shape] = rms_norm  # both are right; one of them, so that runs agree to the bit
    best[x.shape](x, weight, out)
""",
    ),
    honest(
        "talks while it works",
        """
import atexit
import sys
import warnings

atexit.register(print, "bye")


def launch(x, weight, out):
    print("rows", x.shape[0])
    warnings.warn("a warning")
    print("width", x.shape[-1], file=sys.stderr)
    rms_norm(x, weight, out)
""",
    ),
    honest(
        "scratch in a copy of its input",
        """
def launch(x, weight, out):
    scratch = x.clone()
    scratch.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))
    torch.mul(scratch, weight, out=out)
""",
    ),
    honest(
        "the library's own operator",
        """
def launch(x, weight, out):
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5))
""",
    ),
    models.ODD,
    *odd_native.CASES,
)
