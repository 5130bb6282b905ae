"""Cheats in the form of KernelBench: a class `ModelNew` in the place of a kernel file."""

from __future__ import annotations

from autokernel.records import Outcome, Reason, Stage
from autokernel.testing.cheaters.base import Case

_MODEL = '''"""RMSNorm, as a model of its own."""

import torch
from torch import nn


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.seen = {}

'''
HONEST = f"{_MODEL}    def forward(self, x):\n        return rms_norm(x, self.weight)\n"


def _cheat(name: str, body: str, *reasons: Reason) -> Case:
    source = f"{_MODEL}    def forward(self, x):\n        {body}\n"
    return Case(name, "rms_norm", source, Outcome.rejected, (Stage.smoke,), reasons, HONEST)


CASES = (
    _cheat(
        "a ModelNew that takes its parameters for what they were at first",
        "return rms_norm(x, torch.ones_like(x[0]))",
        Reason.wrong_values,
    ),
    _cheat(
        "a ModelNew that keeps its results by shape",
        "return self.seen.setdefault(x.shape, rms_norm(x, self.weight))",
        Reason.stale_output,
    ),
    _cheat(
        "a ModelNew that gives its input back, worked on in place",
        "return x.copy_(rms_norm(x, self.weight))",
        Reason.input_changed,
    ),
)
ODD = Case("a ModelNew", "rms_norm", HONEST, Outcome.accepted, (Stage.edges,), (Reason.ok,))
