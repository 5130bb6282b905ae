"""compute-sanitizer for real: reads that guard bytes can't see are found, a right kernel passes, the verdict says so.

Where the tool isn't there, or doesn't know the device, the verdict must say that, and nothing else is shown.
"""

from __future__ import annotations

import os

import pytest

from autokernel.judge import Opponent, Request, sanitizer
from autokernel.judge.bench import load_reference, open_sandbox
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Outcome, Reason, Stage

pytestmark = pytest.mark.gpu

REQUEST = Request(drop_slow=False)
REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(512, 1000, dtype=torch.bfloat16)]
"""
KERNEL = '''"""Softmax over rows."""
import torch
import triton
import triton.language as tl

LANGUAGE = "triton"


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    value = value / tl.sum(value, 0)
    tl.store(out + row * columns + column, value.to(tl.bfloat16), mask=column < columns)


def launch(x, out):
    x = x.contiguous()
    softmax[(x.shape[0],)](x, out, x.shape[1], triton.next_power_of_2(x.shape[1]), num_warps=4)
'''
# loads the whole block of every row, beyond the last one's end, and takes out afterwards what isn't the row's: the
# result is right, and a load leaves no trace in guard bytes
READS_BEYOND = KERNEL.replace(
    'tl.load(x + row * columns + column, mask=column < columns, other=-float("inf")).to(tl.float32)',
    'tl.where(column < columns, tl.load(x + row * columns + column).to(tl.float32), -float("inf"))',
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "softmax.py"
    path.write_text(REFERENCE)
    with open_sandbox(device="cuda:0") as sandbox:
        sandbox.settle_transport()
        yield Judge(load_reference(path, "cuda:0"), sandbox, seeds=Seeds.fresh())


def works(judge):
    """Whether the tool works on this machine. Where it must, set AUTOKERNEL_SANITIZER_EXPECTED."""
    program = judge.sanitizer.program
    problem = "not installed" if program is None else judge.sanitizer._broken()
    assert not (problem and os.environ.get("AUTOKERNEL_SANITIZER_EXPECTED")), problem
    return not problem


def test_a_right_kernel_passes_both_tools_or_the_verdict_says_why_they_did_not_run(judge):
    assert READS_BEYOND != KERNEL
    verdict = judge.verdict(KERNEL, Opponent("eager"), REQUEST)
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert verdict.sanitizer is not None
    if works(judge):
        assert verdict.sanitizer.not_run == ""
        assert verdict.sanitizer.tools == ("memcheck", "racecheck") and verdict.sanitizer.version
        assert verdict.stage is Stage.sanitizer and verdict.stages[-1].status == "passed"
    else:
        assert verdict.sanitizer.not_run and verdict.stages[-1].status == "skipped"
        assert verdict.stage is Stage.timing


def test_a_read_beyond_an_input_which_guard_bytes_can_not_see_is_found(judge):
    correct = judge.verdict(READS_BEYOND, Opponent("eager"), Request(level="correctness"))
    assert correct.verdict is Outcome.accepted, f"the stages can't see it: {correct.explanation}"
    verdict = judge.verdict(READS_BEYOND, Opponent("eager"), REQUEST)
    if works(judge):
        assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.out_of_bounds), verdict.sanitizer
        assert verdict.stage is Stage.sanitizer and "softmax" in verdict.explanation
        assert verdict.sanitizer is not None and verdict.sanitizer.tools == ("memcheck",)
    else:
        assert verdict.verdict is Outcome.accepted and verdict.sanitizer is not None and verdict.sanitizer.not_run


def test_it_can_be_left_out(judge):
    verdict = judge.verdict(KERNEL, Opponent("eager"), Request(drop_slow=False, sanitize=False))
    assert verdict.verdict is Outcome.accepted and verdict.sanitizer is None


def test_the_tool_is_found_where_toolkits_put_it():
    found = sanitizer.find()
    assert found is None or sanitizer.version(found)
