"""The operations that are measured here: each a KernelBench-form reference and a plain Triton kernel file.

The kernels are what anyone writes first: one row a program, one tile a program, nothing tuned to a device.
"""

from __future__ import annotations

from dataclasses import dataclass

_REFERENCE = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
{body}

def get_init_inputs():
    return []


def get_inputs():
    return [{inputs}]
"""

_SOFTMAX_MODEL = """    def forward(self, x):
        return torch.softmax(x, -1)
"""
_ADD_MODEL = """    def forward(self, x, y):
        return x + y
"""
_MATMUL_MODEL = """    def forward(self, a, b):
        return a @ b
"""
_NORM_MODEL = """    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand({width}, dtype=torch.bfloat16) + 0.5)

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)
"""
_RESIDUAL_MODEL = """    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand({width}, dtype=torch.bfloat16) + 0.5)

    def forward(self, x, residual):
        total = x + residual
        wide = total.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return total, self.weight * wide.to(x.dtype)
"""

_HEAD = """import torch
import triton
import triton.language as tl

LANGUAGE = "triton"


"""
SOFTMAX = (
    _HEAD
    + """@triton.jit
def softmax_rows(x, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
    part = tl.exp(value - tl.max(value, 0))
    tl.store(out + start + columns, part / tl.sum(part, 0), mask=inside)


def launch(x, out):
    x = x.contiguous()
    if out.numel():
        block = triton.next_power_of_2(x.shape[1])
        softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=block, num_warps=min(max(block // 512, 4), 16))
"""
)
RMS_NORM = (
    _HEAD
    + """@triton.jit
def rms_norm_rows(x, weight, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    tl.store(out + start + columns, value * scale * gain, mask=inside)


def launch(x, weight, out):
    x = x.contiguous()
    if out.numel():
        rms_norm_rows[(x.shape[0],)](
            x, weight, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8
        )
"""
)
RESIDUAL_NORM = (
    _HEAD
    + """@triton.jit
def residual_norm_rows(x, residual, weight, total, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    one = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(residual + start + columns, mask=inside, other=0.0).to(tl.float32)
    added = (one + other).to(total.dtype.element_ty)
    tl.store(total + start + columns, added, mask=inside)
    value = added.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + columns, gain * (value * scale).to(out.dtype.element_ty).to(tl.float32), mask=inside)


def launch(x, residual, weight, total, out):
    x, residual = x.contiguous(), residual.contiguous()
    if out.numel():
        block = triton.next_power_of_2(x.shape[1])
        residual_norm_rows[(x.shape[0],)](x, residual, weight, total, out, x.shape[1], BLOCK=block, num_warps=4)
"""
)
ADD = (
    _HEAD
    + """@triton.jit
def add_blocks(x, y, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    one = tl.load(x + places, mask=inside).to(tl.float32)
    tl.store(out + places, one + tl.load(y + places, mask=inside).to(tl.float32), mask=inside)


def launch(x, y, out):
    x, y = x.contiguous(), y.contiguous()
    if out.numel():
        add_blocks[(triton.cdiv(out.numel(), 2048),)](x, y, out, out.numel(), BLOCK=2048, num_warps=8)
"""
)
_MATMUL = (
    _HEAD
    + """@triton.jit
def product_tiles(a, b, out, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    down, across = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    group = tl.program_id(0) // (8 * across)
    height = min(down - group * 8, 8)
    inside = tl.program_id(0) % (8 * across)
    rows = (group * 8 + inside % height) * ROWS + tl.arange(0, ROWS)
    columns = (inside // height) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    left = a + (rows % M)[:, None] * K + inner[None, :]
    right = b + inner[:, None] * N + (columns % N)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, K, DEPTH):
        one = tl.load(left, mask=inner[None, :] < K - begin, other=0.0)
        other = tl.load(right, mask=inner[:, None] < K - begin, other=0.0)
        total = tl.dot(one, other, total, input_precision="ieee")
        left += DEPTH
        right += DEPTH * N
    place = out + rows[:, None] * N + columns[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


def launch(a, b, out):
    a, b = a.contiguous(), b.contiguous()
    M, K, N = *a.shape, b.shape[1]
    if out.numel():
        grid = (triton.cdiv(M, {rows}) * triton.cdiv(N, {columns}),)
        product_tiles[grid](
            a, b, out, M, N, K, ROWS={rows}, COLUMNS={columns}, DEPTH={depth}, num_warps={warps}, num_stages={stages}
        )
"""
)
MATMUL_BF16 = _MATMUL.format(rows=128, columns=256, depth=64, warps=8, stages=3)
MATMUL_FP32 = _MATMUL.format(rows=64, columns=64, depth=32, warps=4, stages=2)


@dataclass(frozen=True)
class Op:
    """`kernel_name`: of the one device kernel that a call launches."""

    name: str
    reference: str
    kernel: str
    kernel_name: str


def _tensor(*shape: int, dtype: str = "bfloat16") -> str:
    return f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype})"


def softmax(rows: int, width: int) -> Op:
    reference = _REFERENCE.format(body=_SOFTMAX_MODEL, inputs=_tensor(rows, width))
    return Op(f"softmax-{rows}x{width}", reference, SOFTMAX, "softmax_rows")


def rms_norm(rows: int, width: int) -> Op:
    reference = _REFERENCE.format(body=_NORM_MODEL.format(width=width), inputs=_tensor(rows, width))
    return Op(f"rmsnorm-{rows}x{width}", reference, RMS_NORM, "rms_norm_rows")


def residual_norm(rows: int, width: int) -> Op:
    body = _RESIDUAL_MODEL.format(width=width)
    reference = _REFERENCE.format(body=body, inputs=f"{_tensor(rows, width)}, {_tensor(rows, width)}")
    return Op(f"residual-rmsnorm-{rows}x{width}", reference, RESIDUAL_NORM, "residual_norm_rows")


def add(rows: int, width: int) -> Op:
    reference = _REFERENCE.format(body=_ADD_MODEL, inputs=f"{_tensor(rows, width)}, {_tensor(rows, width)}")
    return Op(f"add-{rows}x{width}", reference, ADD, "add_blocks")


def matmul(size: int, dtype: str) -> Op:
    tensor = _tensor(size, size, dtype=dtype)
    kernel = MATMUL_BF16 if dtype == "bfloat16" else MATMUL_FP32
    reference = _REFERENCE.format(body=_MATMUL_MODEL, inputs=f"{tensor}, {tensor}")
    return Op(f"matmul-{dtype}-{size}", reference, kernel, "product_tiles")


CLOCK_OPS = (
    softmax(4096, 4096),
    softmax(1024, 4096),
    add(2048, 2048),
    matmul(4096, "float32"),
    softmax(8192, 8192),
    matmul(4096, "bfloat16"),
    rms_norm(8192, 4096),
    softmax(2048, 4096),
    softmax(4096, 32000),
    add(16384, 8192),
    matmul(8192, "bfloat16"),
    softmax(512, 4096),  # shorter than what is claimed
)
