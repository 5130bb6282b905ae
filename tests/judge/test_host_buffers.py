"""A GPU's sets where memory can't be shared: the child works on a copy of everything, canaries included."""

import mmap

import pytest
import torch

from autokernel.judge.buffers import Layout
from autokernel.judge.cuda_buffers import device_view
from autokernel.judge.host_buffers import HostSet
from autokernel.records import TensorSpec

OUT = TensorSpec(name="out", dtype="bfloat16", shape=(4, 4), stride=(4, 1))


class Copy:
    """What a child makes of a set: the shared memory, and a copy of it that stands for the device's."""

    def __init__(self, one):
        layout = Layout.from_json(one.layout.to_json())
        assert (layout.device, layout.handle) == ("cuda", None)
        shared = mmap.mmap(one.fd, layout.size, flags=mmap.MAP_SHARED)
        self.host = torch.frombuffer(shared, dtype=torch.uint8, count=layout.size)
        self.memory = self.host.clone()
        self.inputs = [device_view(self.memory, slot) for slot in layout.inputs]
        self.outputs = [device_view(self.memory, slot) for slot in layout.outputs]
        self.end = layout.outputs[-1].base + layout.outputs[-1].bytes

    def back(self):
        self.host.copy_(self.memory)


@pytest.fixture
def one():
    return HostSet.create([torch.randn(4, 4, dtype=torch.bfloat16), torch.arange(3)], [OUT])


def test_what_the_copy_holds_comes_back(one):
    copy = Copy(one)
    copy.outputs[0].copy_(copy.inputs[0] * 2)
    assert one.unwritten()[0].all()
    copy.back()
    assert torch.equal(one.outputs[0], one.inputs[0] * 2)
    assert one.canaries_intact() == [] and one.inputs_changed() == []


def test_damage_done_to_the_copy_is_seen(one):
    copy = Copy(one)
    copy.inputs[1][0] += 1
    copy.memory[copy.end] += 1
    copy.back()
    assert one.inputs_changed() == [1] and one.canaries_intact() == ["after out"]
