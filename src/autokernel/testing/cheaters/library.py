"""Kernels that leave the work to the library, for a task that allows no library calls. Where it may, they are odd."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import Case, cheat


def _caller(name: str, launch: str) -> Case:
    return cheat(name, launch, Stage.determinism, Reason.library_call, library_calls=False)


CASES = (
    _caller(
        "the reference operator",
        """
def launch(x, weight, out):
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5))
""",
    ),
    _caller(
        "the reference operator, where the kernel fails",
        """
def launch(x, weight, out):
    try:
        rms_norm(x, weight)
    except TypeError:
        out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5))
""",
    ),
    _caller(
        "a kernel for show, and the reference operator after it",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5))
""",
    ),
    _caller(
        "a kernel that is never launched",
        """
decoy = rms_norm


def launch(x, weight, out):
    torch.mul(x, torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight, out=out)
""",
    ),
)
