"""Regions to generate for, tasks made from them, and a way to run a generated kernel."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from autokernel.graph.lower import lower
from autokernel.languages.cpp.language import LOADER_DIRECTORY, Cpp
from autokernel.records import Task, TensorSpec


def rms_norm(x, weight):
    variance = x.float().pow(2).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + 1e-5)).type_as(x) * weight


def residual_norm(x, y, weight):
    total = x + y
    return total, rms_norm(total, weight)


def rotary(x, cos, sin):
    x = x.view(1, x.shape[1], -1, 64).transpose(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def repeated(v):
    return v.view(1, v.shape[1], -1, 64).transpose(1, 2).repeat_interleave(2, dim=1)


def masked_softmax(scores, mask):
    return F.softmax(scores / 8.0 + mask, dim=-1, dtype=torch.float32)


def batch_norm_relu(x, mean, var, weight, bias):
    return F.relu(F.batch_norm(x, mean, var, weight, bias))


def causal(x):
    position = torch.arange(x.shape[-1])
    return torch.where(position[:, None] >= position[None, :], x, float("-inf")).softmax(-1)


def normed_rotary(x, weight, cos, sin):
    x = F.rms_norm(x.view(1, x.shape[1], -1, 64), (64,), weight)
    return rotary(x.reshape(1, x.shape[1], -1), cos, sin)


def activations(x):
    return F.elu(x) + F.mish(x) + F.hardswish(x) + F.leaky_relu(x) + F.hardtanh(x) + F.softplus(x)


def region(name):
    """(function, inputs) by name; small, but with the layouts that models have."""
    generator = torch.Generator().manual_seed(sum(name.encode()))

    def r(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    half, mask = torch.bfloat16, torch.full((40, 40), float("-inf")).triu(1)[:32, :32]
    targets = torch.randint(0, 96, (24,), generator=generator).masked_fill_(torch.arange(24) % 5 == 0, -100)
    table = {
        "rms_norm": (rms_norm, r(1, 24, 128), r(128)),
        "fused_rms_norm": (lambda x, w: F.rms_norm(x, (128,), w, 1e-5), r(1, 24, 128), r(128)),
        "residual_norm": (residual_norm, r(1, 24, 128), r(1, 24, 128), r(128)),
        "rotary": (rotary, r(1, 16, 128), r(16, 64), r(16, 64)),
        "rotary_repeated": (
            lambda k, c, s: rotary(k, c, s).repeat_interleave(2, dim=1),
            r(1, 16, 128),
            r(16, 64),
            r(16, 64),
        ),
        "repeated": (repeated, r(1, 16, 128)),
        "heads_together": (lambda x: x.transpose(1, 2).reshape(1, 16, -1), r(1, 4, 16, 64)),
        "transposed": (lambda x: x.transpose(-1, -2).contiguous(), r(2, 32, 48)),
        "masked_softmax": (masked_softmax, r(1, 4, 32, 32), mask),
        "swiglu": (lambda gate, up: F.silu(gate) * up, r(1, 24, 352), r(1, 24, 352)),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (96,), w, b), r(4, 6, 96), r(96), r(96)),
        "gelu_bias": (lambda x, b: F.gelu(x + b), r(4, 6, 96), r(96)),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), r(4, 6, 96)),
        "cross_entropy": (lambda x, t: F.cross_entropy(x, t), r(24, 96), targets),
        "long_cross_entropy": (lambda x, t: F.cross_entropy(x, t), r(4, 16000), torch.tensor([0, 15999, 7, -100])),
        "log_softmax": (lambda x: F.log_softmax(x, -1), r(24, 80)),
        "logsumexp": (lambda x: torch.logsumexp(x, -1), r(24, 80)),
        "batch_norm_relu": (batch_norm_relu, r(2, 8, 6, 6), r(8), r(8).abs(), r(8), r(8)),
        "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), r(2, 16, 6, 6), r(16), r(16)),
        "activations": (activations, r(7, 33)),
        "spread": (lambda x: x.clamp(-1, 1) + x.std(-1, keepdim=True) + x.var(-1, keepdim=True), r(7, 33)),
        "two_level": (lambda x: x.softmax(-1).mean(), r(24, 24)),
        "whole": (lambda x: x / x.sum(), r(8, 16).abs()),
        "cat_rows": (lambda a, b: torch.cat((a * 2, b), 0) + 1, r(3, 40), r(5, 40)),
        "flip": (lambda x: x.flip(1) * x, r(5, 37)),
        "causal": (causal, r(3, 32, 32)),
        "normed_rotary": (normed_rotary, r(1, 16, 128), r(64), r(16, 64), r(16, 64)),
        "integers": (lambda x, i: (x * i).sum(-1) + i.sum(-1), r(4, 33), torch.arange(132).view(4, 33)),
        "any_all": (lambda x: ((x > 0).any(-1), (x > -2).all(-1)), r(6, 33)),
        "masks": (lambda x, m: torch.where(~m & (x > 0), x, 0.0), r(4, 40), r(40) > 0),
        "bfloat16_norm": (lambda x, w: F.rms_norm(x, (128,), w, 1e-5), r(24, 128, dtype=half), r(128, dtype=half)),
        "float16_softmax": (lambda x: F.softmax(x, -1), r(24, 80, dtype=torch.float16)),
        "float64_norm": (
            lambda x, w: F.layer_norm(x, (96,), w),
            r(6, 96, dtype=torch.float64),
            r(96, dtype=torch.float64),
        ),
    }
    function, *inputs = table[name]
    return function, inputs


REGIONS = """
    rms_norm fused_rms_norm residual_norm rotary rotary_repeated repeated heads_together transposed masked_softmax
    swiglu layer_norm gelu_bias gelu_tanh cross_entropy long_cross_entropy log_softmax logsumexp batch_norm_relu
    group_norm activations spread two_level whole cat_rows flip causal normed_rotary integers any_all masks
    bfloat16_norm float16_softmax float64_norm
""".split()  # noqa: SIM905 - names read best as words


def task_of(name, module, inputs, outputs):
    """A task as the extractor would describe it, all extents fixed."""

    def spec(label, tensor):
        dtype = str(tensor.dtype).removeprefix("torch.")
        return TensorSpec(name=label, dtype=dtype, shape=tuple(tensor.shape), stride=tensor.stride())

    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return Task(
        id=f"00-{name}",
        title=name.replace("_", " "),
        fingerprint="",
        shape_key="",
        inputs=tuple(spec(label, tensor) for label, tensor in zip(names, inputs, strict=True)),
        outputs=tuple(spec(f"out{k}", tensor) for k, tensor in enumerate(outputs)),
    )


def made(function, inputs, name="region"):
    """Everything about a region: lowered module, task, inputs, eager's and float64's outputs."""

    def call(*values):
        found = function(*values)
        return found if isinstance(found, tuple) else (found,)

    module = lower(function, inputs)
    eager = call(*inputs)
    exact = call(*(value.double() if value.is_floating_point() else value for value in inputs))
    return SimpleNamespace(
        name=name,
        function=call,
        module=module,
        task=task_of(name, module, inputs, eager),
        inputs=list(inputs),
        eager=eager,
        exact=exact,
    )


@pytest.fixture(scope="session")
def cpp(tmp_path_factory):
    """The C++ language with a cache of its own."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    sys.path.insert(0, str(LOADER_DIRECTORY))
    yield Cpp()
    sys.path.remove(str(LOADER_DIRECTORY))
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def run(cpp):
    """run(source, inputs, like): the outputs of a kernel file, in buffers poisoned beforehand."""

    def call(source, inputs, like):
        cpp.compile(source)
        module = {"__name__": "kernel"}
        exec(compile(source, "kernel.py", "exec"), module)
        outputs = []
        for tensor in like:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            outputs.append(made.fill_(float("nan") if tensor.is_floating_point() else 1))
        module["launch"](*inputs, *outputs)
        return outputs

    return call


@pytest.fixture(scope="session")
def interpret(tmp_path_factory):
    """interpret(source, inputs, like): as `run`, for Triton kernels, in a process that has Triton interpret them."""
    folder, numbers = tmp_path_factory.mktemp("interpreted"), itertools.count()
    worker = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("triton_worker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def call(source, inputs, like, plain=False):
        path = str(folder / f"kernel{next(numbers)}")
        Path(path + ".py").write_text(source, encoding="utf-8")
        made = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in like]
        outputs = [t.fill_(float("nan") if t.is_floating_point() else 1) for t in made]
        torch.save({"inputs": list(inputs), "outputs": outputs}, path + ".in")
        worker.stdin.write(json.dumps({"path": path, "plain": plain}) + "\n")
        worker.stdin.flush()
        problem = json.loads(worker.stdout.readline())
        assert not problem, f"{problem}\n{source}"
        return torch.load(path + ".out")

    yield call
    worker.stdin.close()
    worker.wait(timeout=30)


@pytest.fixture(scope="session")
def regions():
    """By name: a region with its task and its outputs."""
    return lambda name: made(*region(name), name)


@pytest.fixture(scope="session")
def make():
    return made


def pytest_generate_tests(metafunc):
    if "region_name" in metafunc.fixturenames:
        metafunc.parametrize("region_name", REGIONS)


@pytest.fixture(scope="session")
def agree():
    return check


_UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def check(found, eager, exact):
    """As exact as eager is, within a few roundings of the largest value; NaN and infinities where eager has them."""
    for mine, theirs, true in zip(found, eager, exact, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        if not theirs.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf()) and torch.equal(mine[mine.isinf()], theirs[theirs.isinf()])
        finite = theirs.isfinite()
        mine, theirs, true = mine[finite].double(), theirs[finite].double(), true[finite].double()
        if mine.numel():
            scale = true.abs().max()
            limit = 2 * (theirs - true).abs().max() + 8 * _UNIT[found[0].dtype] * scale
            assert (mine - true).abs().max() <= limit
