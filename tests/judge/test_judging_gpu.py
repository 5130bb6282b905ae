"""Judging on a GPU for real: right and wrong kernels, both ways of sharing memory, and what a child can't spoil."""

import pytest
import torch

from autokernel.judge import Opponent, Request
from autokernel.judge.bench import load_reference, open_sandbox
from autokernel.judge.controls import check_controls
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Outcome, Reason

pytestmark = pytest.mark.gpu

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


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox(device="cuda:0") as made:
        check_controls(made, Seeds.fresh())
        yield made


@pytest.fixture
def judge(sandbox, tmp_path):
    path = tmp_path / "softmax.py"
    path.write_text(REFERENCE)
    return Judge(load_reference(path, "cuda:0"), sandbox, seeds=Seeds.fresh())


def test_a_right_kernel_is_accepted_and_its_time_is_the_child_s_own_within_two_percent(judge):
    verdict = judge.verdict(KERNEL, Opponent("eager"), Request(drop_slow=False))
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert verdict.timing is not None and verdict.resources.registers
    contest = judge.contest(30.0)
    kernel, _ = judge.kernels.build(KERNEL)
    block = contest.block(kernel, contest._gpu_plan(), trusted=False)
    assert block.remark == ""
    assert block.seconds == pytest.approx(block.claimed, rel=0.02)


def test_a_wrong_kernel_is_refused_with_the_element_that_is_off(judge):
    verdict = judge.verdict(KERNEL.replace("value / tl.sum", "value * 1.05 / tl.sum"), Opponent("eager"), Request())
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.wrong_values)
    assert "out[" in verdict.explanation


def test_an_illegal_access_costs_one_child(judge):
    broken = KERNEL.replace("tl.store(out + row", "tl.store(out + 1000000000000 + row")
    verdict = judge.verdict(broken, Opponent("eager"), Request(level="correctness"))
    assert verdict.verdict is Outcome.rejected and verdict.reason in (Reason.exception, Reason.died)
    assert judge.verdict(KERNEL, Opponent("eager"), Request(level="correctness")).verdict is Outcome.accepted
    assert torch.ones(3, device="cuda").sum().item() == 3  # nor is this process's context hurt


def test_a_kernel_that_does_not_end_is_killed_at_its_deadline(judge):
    # a loop without effects would be taken out by the compiler
    waits = "    while tl.atomic_add(out, 0.0) != 12345.0:\n        pass\n"
    endless = KERNEL.replace("    value = tl.exp(value", waits + "    value = tl.exp(value")
    verdict = judge.verdict(endless, Opponent("eager"), Request(level="correctness", deadline_seconds=8.0))
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.timeout)
    assert judge.verdict(KERNEL, Opponent("eager"), Request(level="correctness")).verdict is Outcome.accepted


def test_where_ipc_is_refused_sets_are_copied_and_the_verdict_says_so(judge, sandbox):
    assert sandbox.transport == "ipc"
    sandbox.transport = "host"
    try:
        verdict = judge.verdict(KERNEL, Opponent("eager"), Request(drop_slow=False))
        wrong = judge.verdict(KERNEL.replace("value / tl", "value * 1.05 / tl"), Opponent("eager"), Request())
    finally:
        sandbox.transport = "ipc"
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert any("host memory" in warning for warning in verdict.warnings)
    assert wrong.reason is Reason.wrong_values


def test_inductor_is_an_opponent_that_a_fresh_child_loads_without_compiling(judge):
    timing = judge.compare(Opponent("eager"), Opponent("inductor"), pairs=2)
    assert timing.candidate_us > 0
    again = judge.compare(Opponent("inductor"), Opponent("inductor"), pairs=2)
    assert again.speedup == pytest.approx(1.0, abs=0.05)
