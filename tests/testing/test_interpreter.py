"""Triton kernel files in Triton's interpreter: values, layouts, failures, deadlines."""

import pytest
import torch

from autokernel.testing.interpreter import InterpreterFailure, run_interpreted

SHIFTED = """LANGUAGE = "triton"
import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, y, columns, row, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * row + at, mask=at < columns)
    tl.store(y + tl.program_id(0) * columns + at, v + 1, mask=at < columns)


def launch(x, y):
    assert torch.cuda.get_device_properties(x.device).multi_processor_count == 132
    add_one[(x.shape[0],)](x, y, x.shape[1], x.stride(0), BLOCK=triton.next_power_of_2(x.shape[1]))
"""


def test_outputs_are_filled_in_place_from_inputs_of_any_layout():
    x = torch.randn(5, 12)[1:, 2:9]
    y = torch.full((4, 7), float("nan"))
    before = x.clone()
    run_interpreted(SHIFTED, [x], [y])
    assert torch.equal(y, x + 1) and torch.equal(x, before)


def test_what_launch_raises_is_told():
    with pytest.raises(InterpreterFailure, match="no such luck"):
        run_interpreted(SHIFTED + "    raise ValueError('no such luck')\n", [torch.zeros(2, 2)], [torch.zeros(2, 2)])


def test_an_endless_launch_ends_at_its_deadline():
    with pytest.raises(InterpreterFailure, match="more than 1 s"):
        run_interpreted("def launch(x):\n    while True:\n        pass\n", [], [torch.zeros(1)], deadline=1.0)
