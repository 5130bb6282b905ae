"""Attention pinned in captured graphs: same values, honest metadata, one question a site, and all else left alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.graph.capture import capture, make_backend
from autokernel.rewrite import AttentionSite
from autokernel.rewrite.attention import pin_attention
from autokernel.rewrite.masks import SDPA, arguments
from autokernel.rewrite.pinned import overload

FLASH = overload("flash")


class Attention(nn.Module):
    """Grouped-query attention as libraries write it: a mask made of positions, heads repeated by expand and reshape."""

    def __init__(self, width=32, heads=4, key_heads=2, window=None):
        super().__init__()
        self.heads, self.key_heads, self.window = heads, key_heads, window
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width // heads * key_heads)
        self.v = nn.Linear(width, width // heads * key_heads)
        self.o = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            proj(x).view(batch, length, -1, width // self.heads).transpose(1, 2) for proj in (self.q, self.k, self.v)
        )
        repeats = self.heads // self.key_heads
        k, v = (
            t[:, :, None].expand(batch, self.key_heads, repeats, length, -1).reshape(batch, self.heads, length, -1)
            for t in (k, v)
        )
        position = torch.arange(length, device=x.device)
        mask = position[None, :] <= position[:, None]
        if self.window is not None:
            mask = mask & (position[None, :] > position[:, None] - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None].expand(batch, 1, -1, -1))
        return self.o(y.transpose(1, 2).contiguous().view(batch, length, width))


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return x


X = torch.randn(2, 10, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    return Stack(Attention(), Attention(), Attention(window=3)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def graph(stack):
    return capture(stack, (X,)).graphs[0]


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def sdpa(module):
    return module.graph.find_nodes(op="call_function", target=SDPA)


def pinned(module):
    return module.graph.find_nodes(op="call_function", target=FLASH)


class Asked:
    def __init__(self, answer):
        self.answer, self.sites = answer, []

    def __call__(self, site):
        self.sites.append(site)
        return self.answer(site)


def test_attention_is_pinned_and_the_model_computes_the_same(stack):
    seen = []

    def handle(captured, inputs):
        seen.append(pin_attention(captured.module, lambda site: "flash"))
        return seen[-1].module

    with torch.no_grad():
        result = torch.compile(stack, backend=make_backend(handle), dynamic=False)(X)
        torch.testing.assert_close(result, stack(X))
    (done,) = seen
    assert done.count == 3 and len(pinned(done.module)) == 3 and not sdpa(done.module)
    assert [finding.became for finding in done.findings] == ["causal", "causal", "given"]
    assert sorted(done.sites) == [
        "1 × float32 2×4×10×8, 2 key heads, a mask given: flash",
        "2 × float32 2×4×10×8, 2 key heads, causal: flash",
    ]


def test_every_node_of_the_new_graph_is_what_its_metadata_says(graph, honest_run):
    done = pin_attention(graph.module, lambda site: "flash")
    ours, theirs = honest_run(done.module, *graph.inputs), honest_run(graph.module, *graph.inputs)
    torch.testing.assert_close(ours, theirs)


def test_the_given_graph_is_not_changed(graph):
    before = [(node.format_node(), node.meta.get("val")) for node in graph.module.graph.nodes]
    pin_attention(graph.module, lambda site: "flash")
    after = [(node.format_node(), node.meta.get("val")) for node in graph.module.graph.nodes]
    assert [text for text, _ in after] == [text for text, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))


def test_equal_attentions_are_one_question(graph):
    choose = Asked(lambda site: "flash")
    pin_attention(graph.module, choose)
    assert [(site.mask, site.count, site.gqa) for site in choose.sites] == [("causal", 2, True), ("given", 1, True)]
    causal, windowed = choose.sites
    assert causal.k.shape == (2, 2, 10, 8) and causal.given is None and causal.device == "cpu"
    assert windowed.given.dtype == "bool" and windowed.given.shape == (2, 1, 10, 10)


def test_heads_are_asked_about_as_they_were_before_they_were_repeated_and_then_repeated(graph):
    choose = Asked(lambda site: None if site.gqa else "flash")
    done = pin_attention(graph.module, choose)
    assert [(site.mask, site.gqa) for site in choose.sites] == [
        ("causal", True),
        ("given", True),
        ("causal", False),
        ("given", False),
    ]
    assert done.count == 3
    assert all(node.args[1].meta["val"].shape[1] == 4 for node in pinned(done.module))


def test_heads_that_are_no_longer_repeated_are_not_computed(graph):
    done = pin_attention(graph.module, lambda site: "flash")
    expand = torch.ops.aten.expand.default
    ranks = [
        [node.meta["val"].dim() for node in module.graph.find_nodes(op="call_function", target=expand)]
        for module in (graph.module, done.module)
    ]
    assert 5 in ranks[0] and 5 not in ranks[1]


def test_a_site_without_a_backend_stays_with_its_mask_folded(graph, honest_run):
    done = pin_attention(graph.module, lambda site: None)
    assert done.count == 0 and done.sites == () and done.changed
    assert [arguments(node).get("is_causal", False) for node in sdpa(done.module)] == [True, True, False]
    torch.testing.assert_close(honest_run(done.module, *graph.inputs), honest_run(graph.module, *graph.inputs))


def test_an_unknown_backend_is_an_error(graph):
    with pytest.raises(KeyError, match="cudnn"):
        pin_attention(graph.module, lambda site: "cudnn")  # there is none on the CPU


def test_dropout_is_left(traced):
    module = traced(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), torch.randn(1, 2, 4, 8))
    choose = Asked(lambda site: "flash")
    done = pin_attention(module, choose)
    assert done.count == 0 and not choose.sites and len(sdpa(done.module)) == 1 and not done.changed


def test_where_gradients_are_on_nothing_is_touched_unless_the_caller_knows_better(graph):
    choose = Asked(lambda site: "flash")
    with torch.enable_grad():
        done = pin_attention(graph.module, choose)
        assert done.count == 0 and not done.changed and not choose.sites and len(sdpa(done.module)) == 3
        assert pin_attention(graph.module, choose, differentiated=False).count == 3
    with torch.no_grad():
        assert pin_attention(graph.module, choose, differentiated=True).count == 0


@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)])
def test_tensors_of_other_ranks_are_left(shape, traced):
    module = traced(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(shape))
    assert pin_attention(module, lambda site: "flash").count == 0


def test_grouped_heads_that_the_graph_names_so_are_kept(traced, honest_run):
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    module = traced(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), q, k)
    done = pin_attention(module, lambda site: "flash" if site.gqa else None)
    assert done.count == 1
    expected = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(honest_run(done.module, q, k), expected)


def test_heads_in_another_order_are_not_taken_for_repeated_ones(traced, honest_run):
    def attend(q, k):  # the heads in turn, not each several times
        wide = k[:, None].expand(1, 2, 2, 6, 8).reshape(1, 4, 6, 8)
        return F.scaled_dot_product_attention(q, wide, wide)

    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    module = traced(attend, q, k)
    done = pin_attention(module, lambda site: "flash")
    assert done.count == 1 and not pinned(done.module)[0].args[6]
    torch.testing.assert_close(honest_run(done.module, q, k), attend(q, k))


def test_an_output_keeps_its_strides(traced, honest_run):
    """The graph's caller was promised contiguous memory; the kernel writes as its query is laid out."""
    q = torch.randn(1, 6, 4, 8)

    def attend(q):
        q = q.transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)

    module = traced(attend, q)
    (node,) = sdpa(module)
    with node.meta["val"].fake_mode:
        node.meta["val"] = node.meta["val"].contiguous()
    done = pin_attention(module, lambda site: "flash")
    assert done.count == 1
    result = honest_run(done.module, q)
    assert result.stride() == (192, 48, 8, 1)
    torch.testing.assert_close(result, attend(q))


def test_inside_the_graph_the_kernel_writes_as_it_likes(traced, honest_run):
    """Contiguous was promised to a copy only: the copy takes what comes."""
    q = torch.randn(1, 6, 4, 8)

    def attend(q):
        q = q.transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).clone(memory_format=torch.contiguous_format)

    module = traced(attend, q)
    with sdpa(module)[0].meta["val"].fake_mode:
        values = [sdpa(module)[0].meta["val"].contiguous()]
        values.append(values[0].transpose(1, 2))
    node = sdpa(module)[0]
    node.meta["val"], node.next.meta["val"] = values
    done = pin_attention(module, lambda site: "flash")
    assert pinned(done.module)[0].meta["val"].stride() == (192, 8, 32, 1)
    torch.testing.assert_close(honest_run(done.module, q), attend(q))


def test_sites_are_values():
    from autokernel.rewrite import TensorLayout

    layout = TensorLayout((1, 2, 3, 4), (24, 12, 4, 1), "float32")
    assert len({AttentionSite(layout, layout, layout, "cpu", "none") for _ in range(2)}) == 1
