"""Inductor as an opponent: compiled once, loaded by a fresh child, on the shared parameters."""

from types import SimpleNamespace

import pytest
import torch

from autokernel.errors import NotTimed
from autokernel.judge import generated, inductor
from autokernel.judge.buffers import BufferSet
from autokernel.judge.sandbox import Kernel, Sandbox
from autokernel.records import TensorSpec

REFERENCE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
    def forward(self, x):
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normal * self.weight + self.shift, x.amax(-1)
def get_init_inputs(): return [48]
"""
NAMES = ("weight", "shift")


def spec(name, *shape):
    return TensorSpec(name=name, dtype="float32", shape=shape, stride=torch.empty(shape, device="meta").stride())


INPUTS = [spec("x", 32, 48), spec("weight", 48), spec("shift", 48)]
OUTPUTS = [spec("y", 32, 48), spec("top", 32)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOKERNEL_CACHE_DIR", str(tmp_path))
    return tmp_path / "inductor"


@pytest.mark.slow
def test_a_reference_is_compiled_once_and_right_in_a_fresh_child(cache):
    package = inductor.prepare(REFERENCE, INPUTS, NAMES, threads=1)
    stamp = package.stat().st_mtime_ns
    assert inductor.prepare(REFERENCE, INPUTS, NAMES, threads=1) == package
    assert package.stat().st_mtime_ns == stamp and list(cache.iterdir()) == [package]
    assert generated.is_package(str(package))  # the quick way works with this version of torch
    sets = [BufferSet.create([torch.randn(s.shape) for s in INPUTS], OUTPUTS) for _ in range(3)]
    with Sandbox(threads=1) as sandbox:
        for copies in (False, True):
            child = sandbox.spawn(
                Kernel("inductor", REFERENCE, NAMES, artifact=package, copies=copies), sets, deadline=60
            )
            for one in sets:
                one.poison(0)
            child.loop(3, 60)
            child.close()
            for one in sets:
                x, weight, shift = one.inputs
                wanted = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + shift
                torch.testing.assert_close(one.outputs[0], wanted)
                assert torch.equal(one.outputs[1], x.amax(-1))


@pytest.mark.slow
def test_where_the_generated_text_can_not_be_run_the_reference_is_compiled_ahead(tmp_path):
    package = tmp_path / "model.pt2"
    inputs = [torch.randn(8, 48)]
    inductor._package_ahead(torch.nn.ReLU(), inputs, str(package))
    assert not generated.is_package(str(package))
    sets = [BufferSet.create(inputs, [spec("y", 8, 48)])]
    with Sandbox(threads=1) as sandbox:
        child = sandbox.spawn(Kernel("inductor", REFERENCE, artifact=package), sets, deadline=60)
        child.loop(1, 60)
        child.close()
    assert torch.equal(sets[0].outputs[0], inputs[0].relu())


def test_a_reference_that_can_not_be_compiled_is_not_timed(cache):
    task = SimpleNamespace(task=SimpleNamespace(id="01-broken", inputs=tuple(INPUTS), device_class="cpu"))
    with pytest.raises(NotTimed, match=r"(?s)01-broken.*ModuleNotFoundError"):
        inductor.kernel(task, "import no_such_module", NAMES, threads=1)
    assert list(cache.iterdir()) == []
