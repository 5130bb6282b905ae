"""The sets of a GPU, over memory of the CPU: what they do with bytes is the same on any device."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.judge import cuda_buffers
from autokernel.judge.buffers import BufferSet, Layout, placed
from autokernel.judge.cuda_buffers import CudaSet
from autokernel.judge.turns import drawn
from autokernel.records import TensorSpec


class Memory:
    """Stands where device memory would be."""

    def __init__(self, size):
        self._bytes = torch.zeros(size, dtype=torch.uint8)

    def handle(self):
        return "00" * 64

    def bytes(self):
        return self._bytes


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    monkeypatch.setattr(cuda_buffers, "Allocation", Memory)


def spec(name, shape, dtype="float32", stride=None):
    return TensorSpec(name=name, dtype=dtype, shape=shape, stride=stride or torch.empty(shape).stride())


def made(inputs, outputs):
    """As `CudaSet.create`, for inputs on the CPU."""
    one = CudaSet(*placed(inputs, outputs, "cpu"))
    one.rewrite(inputs)
    one.poison(0)
    return one


def test_a_set_holds_its_inputs_and_tells_a_child_how_to_open_it():
    x, i = torch.randn(3, 5), torch.arange(4)
    one = made([x, i], [spec("out", (3, 5))])
    assert torch.equal(one.inputs[0], x) and torch.equal(one.inputs[1], i)
    sent = Layout.from_json(one.layout.to_json())
    assert (sent.device, sent.handle) == ("cuda", "00" * 64)
    assert sent.inputs[0].stride == (5, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32", "int64", "uint8", "bool"])
def test_what_is_not_written_is_seen_under_both_patterns(dtype):
    one = made([torch.zeros(2)], [spec("out", (6,), dtype)])
    for pattern in (0, 1):
        one.poison(pattern)
        assert one.intact() and bool(one.unwritten()[0].all())
        one.outputs[0][:3] = torch.ones(3).to(one.outputs[0].dtype)
        assert one.unwritten()[0].tolist() == [False] * 3 + [True] * 3
        assert one.untouched() == 1 and not one.intact()


def test_outputs_written_whole_are_not_taken_for_poison():
    one = made([torch.zeros(2)], [spec("out", (64,), "bfloat16")])
    one.outputs[0].copy_(torch.randn(64))
    assert one.untouched() == 0


def test_a_write_beside_a_buffer_is_seen_once_and_named():
    one = made([torch.zeros(4)], [spec("out", (4,))])
    slot = one.layout.outputs[0]
    one._bytes[slot.base + slot.bytes] ^= 255
    assert one.canaries_intact() == ["after out"]
    assert one.canaries_intact() == []


def test_a_changed_input_is_seen():
    one = made([torch.zeros(4), torch.ones(3)], [spec("out", (4,))])
    assert one.inputs_changed() == []
    one.inputs[1][2] = 5
    assert one.inputs_changed() == [1]


def test_a_snapshot_tells_whether_anything_was_written_since():
    one = made([torch.zeros(4)], [spec("out", (4,))])
    before = one.snapshot()
    assert not one.differs(before)
    one.outputs[0][1] = 3
    assert one.differs(before)


def test_an_output_with_gaps_is_written_when_its_elements_are():
    one = made([torch.zeros(4)], [spec("out", (3, 2), stride=(4, 1))])
    one.outputs[0].fill_(1)
    assert one.untouched() == 0 and not one.intact()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
)
def test_rolled_values_are_those_of_the_set_on_the_cpu(count, shift, seed, odd, below_one, dtype):
    x = torch.randn(count).to(getattr(torch, dtype))
    if odd:
        x[: count // 2] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-45] * 8)[: count // 2]
    turn = drawn(dtype, signed=True, below_one=below_one, draw=random.Random(seed))
    here, there = BufferSet.create([x], [spec("out", (1,))]), made([x], [spec("out", (1,))])
    for one in (here, there):
        one.roll([True], shift, [turn])
        assert one.inputs_changed() == []
    assert here.inputs[0].view(torch.uint8).equal(there.inputs[0].view(torch.uint8))
