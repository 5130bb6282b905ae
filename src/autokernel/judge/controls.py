"""Before every run: one kernel that must pass and one that must fail take the path that candidates take.

A verdict is worth nothing from a judge that rejects a right kernel or accepts a wrong one, so either stops the run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autokernel.errors import JudgeUnsound
from autokernel.graph.lower import lower
from autokernel.judge import Opponent, Request
from autokernel.judge.judge import Judge
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.seeds import Seeds
from autokernel.records import Dim, Outcome, Reason, Role, Task, TensorSpec, Verdict
from autokernel.task import LoadedTask

_KERNEL = '''"""Row sums of products: {what}."""

import ctypes

from autokernel_loader import load

LANGUAGE = "cpp"
SERVES = "task"
SOURCE = r"""
extern "C" void rows(const float* x, const float* weight, float* out) {{
    for (int i = 0; i < 8; ++i) {{
        float sum = 0;
        for (int j = 0; j < 32; ++j) sum += x[32 * i + j] * weight[j];
        out[i] = {result};
    }}
}}
"""
kernel = load(SOURCE).rows
kernel.argtypes = [ctypes.c_void_p] * 3


def launch(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr())
'''
RIGHT = _KERNEL.format(what="a control that must pass", result="sum")
WRONG = _KERNEL.format(what="a control that must fail", result="i == 5 ? sum * 1.001f : sum")
_TRITON = '''"""Row sums of products: {what}."""

import triton
import triton.language as tl

LANGUAGE = "triton"
SERVES = "task"


@triton.jit
def rows(x, weight, out):
    row = tl.program_id(0)
    column = tl.arange(0, 32)
    total = tl.sum(tl.load(x + 32 * row + column) * tl.load(weight + column), 0)
    tl.store(out + row, {result})


def launch(x, weight, out):
    rows[(8,)](x.contiguous(), weight.contiguous(), out, num_warps=1)
'''
RIGHT_GPU = _TRITON.format(what="a control that must pass", result="total")
WRONG_GPU = _TRITON.format(what="a control that must fail", result="tl.where(row == 5, total * 1.001, total)")


def check_controls(sandbox: Sandbox, seeds: Seeds) -> tuple[Verdict, Verdict]:
    """The verdicts on the two controls. Raises JudgeUnsound when one is not what it must be; NoCompiler."""
    sandbox.settle_transport()
    judge = Judge(_task(sandbox.device), sandbox, seeds=seeds)
    sources = (RIGHT, WRONG) if sandbox.device == "cpu" else (RIGHT_GPU, WRONG_GPU)
    right, wrong = (judge.verdict(source, Opponent("eager"), Request(level="correctness")) for source in sources)
    if right.verdict is not Outcome.accepted:
        raise JudgeUnsound(detail=f"a right kernel was {_words(right)}")
    if (wrong.verdict, wrong.reason) != (Outcome.rejected, Reason.wrong_values):
        raise JudgeUnsound(detail=f"a kernel with one wrong element was {_words(wrong)}")
    return right, wrong


def _words(verdict: Verdict) -> str:
    return f"{verdict.verdict} at {verdict.stage} ({verdict.reason}): {verdict.explanation}"


def _reference(x: Tensor, weight: Tensor) -> tuple[Tensor]:
    return ((x * weight).sum(-1),)


def _task(device: str) -> LoadedTask:
    inputs = (
        TensorSpec(name="x", dtype="float32", shape=(8, 32), stride=(32, 1)),
        TensorSpec(name="weight", dtype="float32", shape=(32,), stride=(1,), role=Role.parameter),
    )
    task = Task(
        id="00-control",
        title="a control",
        fingerprint="control",
        shape_key="8x32",
        dims={"s0": Dim(value=8), "s1": Dim(value=32)},
        inputs=inputs,
        outputs=(TensorSpec(name="out", dtype="float32", shape=(8,), stride=(1,)),),
        device_class=device,
    )
    module = lower(_reference, [torch.empty(8, 32, device=device), torch.empty(32, device=device)])
    return LoadedTask(task, _reference, module, None)
