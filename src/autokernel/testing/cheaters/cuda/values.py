"""Cheats about what is in the outputs: beside the mark, unset, or less precise than the task asks for."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.cuda.kernels import cheat

SMOKE = Stage.smoke

CASES = (
    cheat(
        "one element past the end",
        """
@triton.jit
def put(out, place):
    tl.store(out + place, 0.0)


def launch(x, weight, out):
    rms_norm(x, weight, out)
    put[(1,)](out, out.numel())
""",
        SMOKE,
        Reason.out_of_bounds,
        twin="""
@triton.jit
def put_back(out, place):
    tl.store(out + place, tl.load(out + place))


def launch(x, weight, out):
    rms_norm(x, weight, out)
    if out.numel():
        put_back[(1,)](out, out.numel() - 1)
""",
    ),
    cheat(
        "one element before the start",
        """
@triton.jit
def put(out):
    tl.store(out - 1, 0.0)


def launch(x, weight, out):
    rms_norm(x, weight, out)
    put[(1,)](out)
""",
        SMOKE,
        Reason.out_of_bounds,
    ),
    cheat(
        "unset tail",
        """
def launch(x, weight, out):
    rms_norm(x[:-1], weight, out[:-1])
""",
        SMOKE,
        Reason.not_written,
        twin="""
def launch(x, weight, out):
    rms_norm(x[:-1], weight, out[:-1])
    rms_norm(x[-1:], weight, out[-1:])
""",
    ),
    cheat(
        "lower precision: bf16",
        """
@triton.jit
def low_rows(x, weight, out, width, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.bfloat16).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    tl.store(out + start + columns, value * scale * gain, mask=inside)


def launch(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    if out.numel():
        low_rows[(x.shape[0],)](x, weight, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
""",
        SMOKE,
        Reason.wrong_values,
    ),
    cheat(
        "lower precision: TF32",
        'def launch(a, b, out):\n    product(a, b, out, "tf32")',
        SMOKE,
        Reason.wrong_values,
        twin='def launch(a, b, out):\n    product(a, b, out, "ieee")',
        task="matmul",
    ),
    cheat(
        "softmax without its maximum",
        "def launch(x, out):\n    e = x.exp()\n    torch.div(e, e.sum(-1, keepdim=True), out=out)",
        Stage.stability,
        Reason.wrong_special_values,
        twin="def launch(x, out):\n    softmax(x, out)",
        task="softmax",
    ),
)
