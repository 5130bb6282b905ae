"""Printed references: readable, alone, and the same computation."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from autokernel.graph.capture import capture
from autokernel.graph.fingerprint import fingerprint
from autokernel.graph.lower import lower
from autokernel.graph.printer import input_expression, print_reference
from autokernel.records import Role, Statistics, TensorSpec


def specs(region):
    found = []
    for node in region.module.graph.find_nodes(op="placeholder"):
        val = node.meta["val"]
        dtype = str(val.dtype).removeprefix("torch.")
        shape, stride = tuple(val.shape), tuple(val.stride())
        found.append(TensorSpec(name=node.name, dtype=dtype, shape=shape, stride=stride, offset=val.storage_offset()))
    return found


def printed(region, **options):
    text = print_reference(region.module, specs(region), region.title, lines=region.lines, **options)
    namespace = {}
    exec(compile(text, "reference.py", "exec"), namespace)
    return text, namespace


def identity(region, namespace):
    model = namespace["Model"](*namespace["get_init_inputs"]())
    inputs = [node.meta["val"] for node in region.module.graph.find_nodes(op="placeholder")]
    return fingerprint(lower(model, inputs))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["llama_mini", "gpt2_block", "conv_net"])
def test_every_region_of_the_examples_traces_back_to_itself(captures, name, plain):
    seen = set()
    for region in captures[name].graphs[0].regions:
        key = (region.fingerprint, region.shape_key)
        if key in seen:
            continue
        seen.add(key)
        extents = {size for spec in specs(region) for size in spec.shape if size > 1}
        for free in (frozenset(), extents):
            text, namespace = printed(region, plain=plain, free=free)
            assert identity(region, namespace) == key, text


def test_people_would_write_it_like_this(llama):
    norm = next(region for region in llama.graphs[0].regions if region.title == "rms norm")
    text, _ = printed(norm)
    assert "variance = x.pow(2).mean(-1, keepdim=True)" in text
    assert "out = x * torch.rsqrt(variance + 1e-05) * weight" in text
    assert "# llama_mini.py:21  variance = x.float().pow(2).mean(-1, keepdim=True)" in text
    swiglu = next(region for region in llama.graphs[0].regions if region.title == "swiglu")
    assert "F.silu(gate_proj) * up_proj" in printed(swiglu)[0]


def test_a_reference_runs_alone_with_torch_only(llama, tmp_path):
    softmax = next(region for region in llama.graphs[0].regions if region.title == "div → add → softmax")
    (tmp_path / "reference.py").write_text(printed(softmax)[0])
    code = (
        "import sys; sys.modules['autokernel'] = None; import reference as r; "
        "print(tuple(r.Model(*r.get_init_inputs())(*r.get_inputs()).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(1, 4, 24, 24)", done.stderr


ODD = {
    "precedence": lambda x: (x + 1) * (x - (2 - x)) / (-x) ** 2 - (-(x + x)).exp(),
    "comparisons": lambda x: torch.where((x > 0) & (x < 1), x, 0.0).masked_fill(~(x != x), float("-inf")),
    "slices": lambda x: x[:, :, 1:5:2] + x[0, :, :2] * x[..., -2:],
    "casts": lambda x: (x.to(torch.bfloat16) * 2).float() + x.int() + (x > 0),
    "reductions": lambda x: x.amax(-1) + x.sum((0, 2)) * x.var(-1, unbiased=False) - x.std(-1, keepdim=True)[..., 0],
    "unspelled": lambda x: torch.special.erfcx(x) + torch.nextafter(x, x + 1) + x.cumsum(-1) + torch.addcmul(x, x, x),
    "norms": lambda x: F.group_norm(x, 2) + F.layer_norm(x, (4, 6), eps=1e-3) + F.rms_norm(x, (6,)),
    "shapes": lambda x: torch.cat([x.flatten(1), x.permute(2, 0, 1).reshape(6, -1).t().reshape(4, 24)], 0),
    "created": lambda x: x + torch.arange(6) * torch.full((4, 6), 0.5) + torch.ones(4, 6).triu(1) + torch.zeros(6),
    "integers": lambda x: (x * 10).long() % 7 // 2 + torch.argmax(x, -1, keepdim=True),
    "keywords": lambda x: torch.clamp(x, max=0.5) + F.gelu(x, approximate="tanh") + torch.add(x, x, alpha=3),
    "losses": lambda x: F.cross_entropy(x[0], torch.ones(4).long(), label_smoothing=0.1) + F.mse_loss(x, x + 1),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_functions_trace_back(name):
    torch.manual_seed(0)
    x = torch.rand(4, 4, 6)
    for region in capture(ODD[name], (x,)).graphs[0].regions:
        text, namespace = printed(region)
        assert identity(region, namespace) == (region.fingerprint, region.shape_key), text
        inputs = [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype)) for s in specs(region)]
        for value in inputs:
            value.copy_(torch.rand(value.shape) * 3)
        out = namespace["Model"]()(*inputs)
        for ours, theirs in zip(out if isinstance(out, tuple) else (out,), region.module(*inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@given(
    shape=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from(["float32", "bfloat16", "float64", "int64", "int32", "bool"]),
    offset=st.integers(0, 7),
    data=st.data(),
)
def test_inputs_have_exactly_their_layout(shape, dtype, offset, data):
    stride = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    floating = data.draw(st.sampled_from(["real", "unit"]))
    domain = {"bool": "bool", "int64": "index", "int32": "index"}.get(dtype, floating)
    spec = TensorSpec(
        name="x", dtype=dtype, shape=tuple(shape), stride=tuple(stride), offset=offset, domain=domain, high=4,
        role=Role.buffer, statistics=Statistics(mean=-1.0, std=0.5, minimum=-2.0, maximum=3.0),
    )  # fmt: skip
    value = eval(input_expression(spec), {"torch": torch})
    assert tuple(value.shape) == spec.shape
    assert value.stride() == spec.stride or value.is_contiguous()
    assert value.storage_offset() == spec.offset
    assert str(value.dtype) == f"torch.{dtype}"


def test_inputs_follow_their_statistics_and_structure():
    def value(**fields):
        spec = TensorSpec(name="x", dtype="float32", shape=(64, 64), stride=(64, 1), **fields)
        return eval(input_expression(spec), {"torch": torch})

    torch.manual_seed(0)
    weights = value(statistics=Statistics(mean=1.0, std=0.02))
    assert abs(weights.mean() - 1) < 0.01
    assert abs(weights.std() - 0.02) < 0.005
    mask = value(domain="causal_mask")
    assert torch.equal(mask == 0, torch.ones(64, 64).tril().bool())
    assert value(domain="positive").min() > 0
