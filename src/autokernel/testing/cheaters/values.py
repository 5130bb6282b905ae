"""Cheats about what is in the outputs: unwritten, copied, constant, imprecise, beside the mark, or not finite."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

SMOKE = Stage.smoke

CASES = (
    cheat("nothing written", "def launch(x, weight, out):\n    pass", SMOKE, Reason.not_written),
    cheat("copy of the input", "def launch(x, weight, out):\n    out.copy_(x)", SMOKE, Reason.wrong_values),
    cheat("constant output", "def launch(x, weight, out):\n    out.fill_(0.5)", SMOKE, Reason.wrong_values),
    cheat(
        "one element past the end",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    ctypes.memset(out.data_ptr() + 4 * out.numel(), 0, 4)
""",
        SMOKE,
        Reason.out_of_bounds,
        twin="""
def launch(x, weight, out):
    rms_norm(x, weight, out)
    if out.numel():
        last = ctypes.c_float.from_address(out.data_ptr() + 4 * (out.numel() - 1))
        last.value = last.value
""",
    ),
    cheat(
        "unset tail",
        """
def launch(x, weight, out):
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0] - 1, x.shape[1])
""",
        SMOKE,
        Reason.not_written,
    ),
    cheat(
        "lower precision",
        """
def launch(x, weight, out):
    low = x.bfloat16()
    out.copy_(low * torch.rsqrt(low.square().mean(-1, keepdim=True) + 1e-5) * weight.bfloat16())
""",
        SMOKE,
        Reason.wrong_values,
        twin="""
def launch(x, weight, out):
    out.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight)
""",
    ),
    cheat(
        "weights taken to be one",
        """
def launch(x, weight, out):
    rms_norm(x, torch.ones_like(weight), out)
""",
        SMOKE,
        Reason.wrong_values,
    ),
    cheat(
        "NaN everywhere",
        "def launch(x, weight, out):\n    out.fill_(float('nan'))",
        SMOKE,
        Reason.wrong_special_values,
    ),
    cheat(
        "only the task's own shape, and says nothing",
        """
def launch(x, weight, out):
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr(), min(64, x.shape[0]), x.shape[1])
""",
        Stage.shapes,
        Reason.not_written,
        twin="""
SERVES = {"s0": 64}


def launch(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr(), 64, x.shape[1])
""",
    ),
    cheat(
        "refuses every shape but the task's own, and says nothing",
        """
def launch(x, weight, out):
    if x.shape[0] != 64:
        raise NotImplementedError("64 rows")
    rms_norm(x, weight, out)
""",
        Stage.shapes,
        Reason.exception,
        twin="""
SERVES = {"s0": 64}


def launch(x, weight, out):
    if x.shape[0] != 64:
        raise NotImplementedError("64 rows")
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "mutates its input",
        """
def launch(x, weight, out):
    x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))
    torch.mul(x, weight, out=out)
""",
        SMOKE,
        Reason.input_changed,
        twin="""
def launch(x, weight, out):
    x = x.clone()
    x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))
    torch.mul(x, weight, out=out)
""",
    ),
    cheat(
        "noise",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    out.mul_(1 + 1e-3 * torch.rand(out.shape))
""",
        SMOKE,
        Reason.wrong_values,
    ),
    cheat(
        "another answer each time, inside the tolerance",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    out.mul_(1 + 6e-8 * torch.randint(-1, 2, out.shape))
""",
        Stage.determinism,
        Reason.not_deterministic,
    ),
    cheat(
        "softmax without its maximum",
        "def launch(x, out):\n    e = x.exp()\n    torch.div(e, e.sum(-1, keepdim=True), out=out)",
        Stage.stability,
        Reason.wrong_special_values,
        twin="def launch(x, out):\n    softmax(x, out)",
        task="softmax",
    ),
    cheat(
        "subnormal inputs taken for zero",
        """
def launch(x, weight, out):
    rms_norm(torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x), weight, out)
""",
        Stage.stability,
        Reason.wrong_values,
        twin="""
def launch(x, weight, out):
    rms_norm(x, weight, out)
    out.copy_(torch.where(out.abs() < torch.finfo(torch.float32).tiny, 0.0, out))
""",
    ),
    cheat(
        "small probabilities dropped",
        """
def launch(x, out):
    softmax(x, out)
    out[out < 1e-3] = 0
""",
        SMOKE,
        Reason.wrong_values,
        twin="""
def launch(x, out):
    softmax(x, out)
    out[out < 1e-42] = 0
""",
        task="softmax",
    ),
    cheat(
        "one element before the start",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    ctypes.memset(out.data_ptr() - 4, 0, 4)
""",
        SMOKE,
        Reason.out_of_bounds,
    ),
    cheat(
        "a tensor subclass that says it is right",
        """
class Right(torch.Tensor):
    def __eq__(self, other):
        return torch.ones(self.shape, dtype=torch.bool)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True


def launch(x, weight, out):
    out.__class__ = Right
""",
        SMOKE,
        Reason.not_written,
    ),
    cheat(
        "an output whose methods say it is right",
        """
def launch(x, weight, out):
    out.equal = out.allclose = lambda other, *words, **options: True
    out.data_ptr = x.data_ptr
    out.copy_ = out.fill_ = lambda *words: out
""",
        SMOKE,
        Reason.not_written,
    ),
)
