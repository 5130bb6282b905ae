"""Lowering keeps values, and leaves nothing but the closed set."""

import operator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.errors import CaptureFailed
from autokernel.graph.emitter import value_of
from autokernel.graph.lower import is_closed, lower
from autokernel.graph.opset import kind_of

aten = torch.ops.aten
X = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(1))
W = torch.rand(16) + 0.5


def written_norm(x, w):
    variance = x.float().pow(2).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + 1e-5)).type_as(x) * w


CLOSED = {
    "rms norm": lambda x, w: F.rms_norm(x, (16,), w, 1e-5),
    "rms norm, default eps": lambda x, w: F.rms_norm(x, (16,)),
    "rms norm, written out": lambda x, w: written_norm(x, w),
    "layer norm": lambda x, w: F.layer_norm(x, (16,), w, w),
    "layer norm over two dims": lambda x, w: F.layer_norm(x, (8, 16)),
    "group norm": lambda x, w: F.group_norm(x, 2, w[:8], w[:8]),
    "batch norm": lambda x, w: F.batch_norm(x, w[:8], w[8:], w[:8], w[8:]),
    "softmax in another dtype": lambda x, w: F.softmax(x.bfloat16(), -1, dtype=torch.float32),
    "log softmax": lambda x, w: F.log_softmax(x, -1),
    "logsumexp, std, var, norm": lambda x, w: x.logsumexp(-1) + x.std(-1) + x.var(-1, unbiased=False) + x.norm(dim=-1),
    "cross entropy": lambda x, w: F.cross_entropy(x.view(-1, 16), torch.arange(32) % 16, ignore_index=3),
    "cross entropy, smoothed": lambda x, w: F.cross_entropy(x.view(-1, 16), torch.arange(32) % 16, label_smoothing=0.1),
    "nll": lambda x, w: F.nll_loss(x.view(-1, 16), torch.arange(32) % 16, reduction="none"),
    "gelu": lambda x, w: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "swiglu": lambda x, w: F.silu(x[..., :8]) * x[..., 8:],
    "rotate half": lambda x, w: torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * w,
    "repeat interleave": lambda x, w: x.repeat_interleave(2, dim=1),
    "masks": lambda x, w: x.masked_fill(torch.ones(8, 16).triu(1).bool(), float("-inf")) + torch.ones(8, 16).tril(),
    "dropout at rest": lambda x, w: F.dropout(x, 0.5, training=False) * 2,
    "in place": lambda x, w: (x + 1).relu_().mul_(2).add_(x, alpha=3),
    "scalars on the left": lambda x, w: (1 - x, 2 / x, 2**x, 1.0 - x * 3),
    "alpha": lambda x, w: torch.sub(x, w, alpha=2) + torch.rsub(x, w, alpha=3),
    "promotion": lambda x, w: (x.int() + x, x.bfloat16() * w, x > 0, (x > 0) + 1, x.int() / 2),
    "powers": lambda x, w: (x**2, x.square(), x.abs() ** 0.5, x**3, (x * x + 1) ** -0.5, x**2.5),
    "views": lambda x, w: (x.mT, x[:, ::2], x[..., -3:], x[1], x.flatten(1), x.unflatten(-1, (4, 4)), x.unbind(1)[2]),
    "copies": lambda x, w: (x.clone(), x.mT.contiguous(), x.transpose(0, 2).reshape(-1)),
    "stack and flip": lambda x, w: torch.stack([x, x.flip(-1)], -1).flatten(-2),
    "largest": lambda x, w: (x.max(-1).values, x.max(-1).indices, x.max(), x.argmax(-1), x.amax((0, 2)), x.prod(-1)),
    "bool logic": lambda x, w: x.masked_fill(~(x > 0) | (x > 1) & (w > 1) ^ (x < 2), 0.0),
    "any and all": lambda x, w: ((x > 0).any(-1), (x > 0).all(), (x > 1).sum(-1)),
    "activations": lambda x, w: (
        F.softplus(x),
        F.elu(x),
        F.hardswish(x),
        F.mish(x),
        F.leaky_relu(x),
        F.glu(x),
        F.relu6(x),
    ),
    "created": lambda x, w: x + torch.arange(16) + torch.zeros_like(x) + x.new_ones(16) + torch.tensor(0.5),
}


def results(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("name", CLOSED)
def test_values_layout_and_dtype_survive_and_every_operator_is_in_the_closed_set(name):
    function = CLOSED[name]
    module = lower(function, [X, W])
    assert [str(node.target) for node in module.graph.nodes if not is_closed(node)] == []
    for ours, theirs in zip(module(X.clone(), W), results(function(X.clone(), W)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())


@pytest.mark.parametrize("name", CLOSED)
def test_lowered_graphs_are_canonical(name):
    module = lower(CLOSED[name], [X, W])
    seen = set()
    for node in module.graph.nodes:
        assert node.op == "output" or "val" in node.meta
        if node.op != "call_function":
            continue
        assert node.target is not operator.getitem
        assert not node.target._schema.is_mutable
        assert node.users, f"{node} is dead"
        assert "alpha" not in node.kwargs
        key = (node.target, repr(node.args), repr(node.kwargs))
        assert key not in seen, f"{node} is there twice"
        seen.add(key)
        tensors = [value_of(argument) for argument in node.all_input_nodes]
        if kind_of(node.target) == "pointwise" and node.target is not aten.where.self:
            assert len({value.dtype for value in tensors}) == 1, f"{node} promotes silently"
        if kind_of(node.target) == "reduction":
            assert node.args[2] is True
        if node.target in (aten.reshape.default, aten.expand.default):
            assert all(size >= 0 for size in node.args[1])
            assert list(value_of(node.args[0]).shape) != list(node.args[1])


def test_the_library_norm_and_the_written_out_norm_are_one_graph():
    library = lower(lambda x, w: F.rms_norm(x, (16,), w, 1e-5), [X, W])
    assert library.code == lower(written_norm, [X, W]).code
    assert "1e-05" in library.code  # not rounded to float32


def test_low_precision_norm_accumulates_in_float32():
    code = lower(lambda x, w: F.rms_norm(x, (16,), w, 1e-5), [X.bfloat16(), W.bfloat16()]).code
    assert code.count("torch.float32") == 2  # x and the weight
    assert code.count("torch.bfloat16") == 1  # the result, once


def test_products_convolution_embedding_and_attention_stay_whole():
    q = X[None]

    def model(x, w, q):
        table = F.embedding(torch.arange(4), w)
        return F.linear(x, w), x @ w.T, table, F.scaled_dot_product_attention(q, q, q), F.conv1d(x, x[:, :, :3])

    module = lower(model, [X, torch.randn(8, 16), q])
    opaque = {str(node.target) for node in module.graph.nodes if not is_closed(node)} - {"<built-in function getitem>"}
    assert {"aten.mm.default", "aten.embedding.default", "aten.convolution.default"} <= opaque
    assert any("scaled_dot_product" in name for name in opaque)


def test_attention_is_written_out_for_an_oracle():
    q = X[None]

    def attention(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    module = lower(attention, [q], whole=False)
    opaque = {str(node.target) for node in module.graph.nodes if not is_closed(node)}
    assert opaque == {"aten.bmm.default"}
    torch.testing.assert_close(module(q)[0], attention(q), rtol=1e-5, atol=1e-5)


def test_composites_that_write_in_place_inside_come_out_functional():
    def loss(x, target):
        return F.cross_entropy(x, target, reduction="none", label_smoothing=0.1)

    target = torch.arange(64).view(4, 16) % 8
    module = lower(loss, [X, target])
    torch.testing.assert_close(module(X, target)[0], loss(X, target), rtol=1e-5, atol=1e-5)


def test_a_function_that_writes_to_its_input_is_refused():
    with pytest.raises(CaptureFailed, match="writes to its inputs"):
        lower(lambda x: x.mul_(2), [X])


def test_a_baked_in_tensor_is_refused():
    with pytest.raises(CaptureFailed, match="baked in"):
        lower(lambda x: x * torch.tensor([1.0, 2.0] * 8), [X])


def test_independent_lines_may_stand_in_any_order():
    def one(x):
        a = x.sin()
        b = x.cos()
        return a * b

    def other(x):
        b = x.cos()
        a = x.sin()
        return a * b

    assert lower(one, [X]).code == lower(other, [X]).code


def test_lowered_graphs_run_on_other_strides_than_they_were_traced_with():
    module = lower(lambda x: F.layer_norm(x.reshape(32, 16), (16,)), [X])
    strided = torch.empty(8, 16, 4).permute(2, 0, 1).copy_(X)
    torch.testing.assert_close(module(strided)[0], module(X)[0])


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, data=st.data())
def test_reductions_over_any_dims_keep_their_meaning(shape, data):
    x = torch.randn(shape)
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=2))
    dims = list({dim % len(shape): dim for dim in dims}.values())
    keepdim = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]))

    def function(x):
        return x.to(dtype).sum(dims, keepdim=keepdim), x.amax(dims, keepdim=keepdim), x.mean(dims, keepdim=keepdim)

    for ours, theirs in zip(lower(function, [x])(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs)
