"""What the cheaters and their twins are made of: a case, and an honest C++ kernel that a cheat is wrapped around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autokernel.records import Outcome, Reason, Stage, Verdict

RMS_NORM = '''"""RMSNorm over the last dim."""

import ctypes

import torch
from autokernel_loader import load

LANGUAGE = "cpp"
SOURCE = r"""
#include <cmath>
extern "C" void rms_norm(const float* x, const float* weight, float* out, long rows, long width) {
#pragma omp parallel for
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * width;
        float lanes[8] = {0};
        long j = 0;
        for (; j + 8 <= width; j += 8)
            for (int k = 0; k < 8; ++k) lanes[k] += in[j + k] * in[j + k];
        float sum = 0;
        for (; j < width; ++j) sum += in[j] * in[j];
        for (int k = 0; k < 8; ++k) sum += lanes[k];
        const float scale = 1.0f / std::sqrt(sum / width + 1e-5f);
        for (long j = 0; j < width; ++j) out[row * width + j] = in[j] * scale * weight[j];
    }
}
"""
kernel = load(SOURCE).rms_norm
kernel.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


def rms_norm(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
'''

SOFTMAX = '''"""Softmax over the last dim."""

import ctypes

import torch
from autokernel_loader import load

LANGUAGE = "cpp"
SOURCE = r"""
#include <cmath>
extern "C" void softmax(const float* x, float* out, long rows, long width) {
    for (long row = 0; row < rows; ++row) {
        const float* in = x + row * width;
        float* to = out + row * width;
        float most = -INFINITY, sum = 0;
        for (long j = 0; j < width; ++j) most = in[j] > most || std::isnan(in[j]) ? in[j] : most;
        for (long j = 0; j < width; ++j) sum += to[j] = std::exp(in[j] - most);
        for (long j = 0; j < width; ++j) to[j] /= sum;
    }
}
"""
kernel = load(SOURCE).softmax
kernel.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2


def softmax(x, out):
    x = x.contiguous()
    kernel(x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
'''

HONEST = "def launch(x, weight, out):\n    rms_norm(x, weight, out)\n"


@dataclass(frozen=True)
class Case:
    """A kernel file and what the judge must say of it. `twin`: the same file without the cheat, to be accepted.

    `stages` and `reasons`: more than one where what happens first is a matter of scheduling. `level`: how far the judge
    must go to see it; `suspect`: a verdict of suspect will do as well. `library_calls`: what the task allows.
    `bubblewrap`: what it reaches for is shut away by bubblewrap alone; where that doesn't work, don't run it.
    """

    name: str
    task: str  # a file of this folder, see `reference`
    source: str
    verdict: Outcome
    stages: tuple[Stage, ...]
    reasons: tuple[Reason, ...]
    twin: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    level: Literal["correctness", "full"] = "correctness"
    suspect: bool = False
    library_calls: bool = True
    bubblewrap: bool = False  # plain isolation can't refuse it

    def wrong(self, found: Verdict) -> str:
        """What is not as it must be in the verdict on `source`; empty when all is."""
        words = f"{found.verdict} at {found.stage}, {found.reason}: {found.explanation}"
        outcomes = {self.verdict, Outcome.suspect} if self.suspect else {self.verdict}
        if found.verdict not in outcomes:
            return f"not {' or '.join(sorted(outcomes))} but {words}"
        if found.verdict is Outcome.accepted:
            return ""
        if found.stage not in self.stages or found.reason not in self.reasons:
            return f"for another reason than it should: {words}"
        return ""


def cheat(
    name: str,
    launch: str,
    stage: Stage | tuple[Stage, ...],
    *reasons: Reason,
    twin: str = HONEST,
    task: str = "rms_norm",
    bubblewrap: bool = False,
    library_calls: bool = True,
) -> Case:
    """A case of a rejected kernel: `launch` and `twin` are put behind the honest kernel of the task."""
    before = RMS_NORM if task == "rms_norm" else SOFTMAX
    stages = stage if isinstance(stage, tuple) else (stage,)
    source, honest_one = _file(before, launch), _file(before, twin)
    return Case(
        name, task, source, Outcome.rejected, stages, reasons, honest_one,
        bubblewrap=bubblewrap, library_calls=library_calls,
    )  # fmt: skip


def honest(name: str, launch: str, task: str = "rms_norm") -> Case:
    """A case of an odd kernel that must be accepted."""
    before = RMS_NORM if task == "rms_norm" else SOFTMAX
    return honest_file(name, _file(before, launch), task)


def honest_file(name: str, source: str, task: str = "rms_norm") -> Case:
    """As `honest`, of a whole file."""
    return Case(name, task, source, Outcome.accepted, (Stage.edges,), (Reason.ok,))


def _file(before: str, launch: str) -> str:
    return f"{before}\n\n{launch.strip()}\n"
