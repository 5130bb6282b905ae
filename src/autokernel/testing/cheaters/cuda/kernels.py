"""Honest Triton kernels, one row a program (and a tiled product), and how a case is made from one."""

from __future__ import annotations

from typing import Literal

from autokernel.records import Outcome, Reason, Stage
from autokernel.testing.cheaters.base import HONEST, Case

_HEAD = '''"""{what}."""

import torch
import triton
import triton.language as tl

LANGUAGE = "triton"
'''

RMS_NORM = (
    _HEAD.format(what="RMSNorm over the last dim")
    + """

@triton.jit
def rms_norm_rows(x, weight, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    tl.store(out + start + columns, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def rms_norm(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    if out.numel():
        rms_norm_rows[(x.shape[0],)](x, weight, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
"""
)

SOFTMAX = (
    _HEAD.format(what="Softmax over the last dim")
    + """

@triton.jit
def softmax_rows(x, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
    part = tl.exp(value - tl.max(value, 0))
    tl.store(out + start + columns, (part / tl.sum(part, 0)).to(out.dtype.element_ty), mask=inside)


def softmax(x, out):
    x = x.contiguous()
    if out.numel():
        softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
"""
)

MATMUL = (
    _HEAD.format(what="A matrix product, tile by tile")
    + """

@triton.jit
def product_tiles(a, b, out, M, N, K, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for begin in range(0, K, BLOCK):
        inner = begin + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * K + inner[None, :], (rows[:, None] < M) & (inner[None, :] < K), 0.0)
        right = tl.load(b + inner[:, None] * N + columns[None, :], (inner[:, None] < K) & (columns[None, :] < N), 0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + rows[:, None] * N + columns[None, :], total, (rows[:, None] < M) & (columns[None, :] < N))


def product(a, b, out, precision):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    if out.numel():
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
        product_tiles[grid](a, b, out, M, N, K, PRECISION=precision, BLOCK=32)
"""
)

BEFORE = {
    "rms_norm": RMS_NORM,
    "rms_norm_bf16": RMS_NORM,
    "rms_norm_large": RMS_NORM,
    "softmax": SOFTMAX,
    "matmul": MATMUL,
}
ANY_STAGE = (Stage.smoke, Stage.screen, Stage.shapes, Stage.stability, Stage.determinism, Stage.edges, Stage.timing)


def cheat(
    name: str,
    launch: str,
    stage: Stage | tuple[Stage, ...],
    *reasons: Reason,
    twin: str = HONEST,
    task: str = "rms_norm",
    level: Literal["correctness", "full"] = "correctness",
    suspect: bool = False,
    library_calls: bool = True,
) -> Case:
    """A case of a rejected kernel: `launch` and `twin` are put behind the honest kernel of the task."""
    return Case(
        name,
        task,
        file(task, launch),
        Outcome.rejected,
        stage if isinstance(stage, tuple) else (stage,),
        reasons,
        file(task, twin),
        device="cuda",
        level=level,
        suspect=suspect,
        library_calls=library_calls,
    )


def honest(name: str, launch: str, task: str = "rms_norm") -> Case:
    """A case of an odd kernel that must be accepted."""
    accepted = (Stage.edges,)
    return Case(name, task, file(task, launch), Outcome.accepted, accepted, (Reason.ok,), device="cuda")


def file(task: str, launch: str) -> str:
    return f"{BEFORE[task]}\n\n{launch.strip()}\n"
