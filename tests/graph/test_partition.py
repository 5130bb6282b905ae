"""Regions: what belongs together, what must not, and nothing left out."""

import operator
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.graph.capture import capture
from autokernel.graph.facts import facts_of, trailing
from autokernel.graph.partition import partition
from autokernel.graph.replace import split


def regions_of(function, *inputs):
    return capture(function, inputs).graphs[0].regions


def titles(regions):
    return [region.title for region in regions]


def test_llama_is_cut_as_a_person_would_cut_it(llama):
    found = Counter((region.kind, region.title) for region in llama.graphs[0].regions)
    assert found == {
        ("other", "embedding"): 1,
        ("row", "rms norm"): 1,
        ("row", "add → rms norm"): 4,
        ("pointwise", "rotary"): 2,
        ("pointwise", "rotary → repeat interleave"): 2,
        ("pointwise", "repeat interleave"): 2,
        ("row", "div → add → softmax"): 2,
        ("pointwise", "copy"): 2,
        ("pointwise", "swiglu"): 2,
        ("other", "linear"): 15,
        ("other", "matmul"): 4,
    }


def test_the_residual_norm_has_two_outputs_except_the_last(llama):
    norms = [region for region in llama.graphs[0].regions if region.title == "add → rms norm"]
    assert [len(region.outputs) for region in norms] == [2, 2, 2, 1]
    assert [node.name for node in norms[0].module.graph.find_nodes(op="placeholder")] == ["x", "o_proj", "weight"]


def test_gpt2_and_the_conv_net(gpt2, conv):
    fused = [region.title for region in gpt2.graphs[0].regions if region.kind != "other"]
    assert fused.count("add → layer norm") == 3
    assert {"gelu", "cross entropy"} <= set(fused)
    assert [region.kind for region in gpt2.graphs[0].regions if region.title == "cross entropy"] == ["row"]
    fused = [region.title for region in conv.graphs[0].regions if region.kind == "pointwise"]
    assert fused.count("batch norm → relu") == 3
    assert "batch norm → add → relu" in fused


def test_every_computation_is_in_exactly_one_region(captures):
    for name, found in captures.items():
        (graph,) = found.graphs
        owners = Counter(node for region in graph.regions for node in region.nodes)
        assert set(owners.values()) == {1}, name
        for node in graph.module.graph.nodes:
            if node.op == "call_function" and node not in owners:
                assert facts_of(node).kind in ("view", "constant"), f"{name}: {node}"


def test_regions_alone_give_what_the_whole_graph_gives(captures):
    for found in captures.values():
        (graph,) = found.graphs
        with torch.no_grad():
            for whole, parts in zip(graph.module(*graph.inputs), split(graph)(*graph.inputs), strict=True):
                torch.testing.assert_close(parts, whole, rtol=0, atol=0)


def test_regions_stand_in_topological_order(captures):
    for found in captures.values():
        regions = found.graphs[0].regions
        made = {node: region.index for region in regions for node in region.nodes}
        for region in regions:
            assert all(made[node] < region.index for node in region.inputs if node in made)


def test_cutting_twice_gives_the_same(llama):
    first, second = (partition(llama.graphs[0].module) for _ in range(2))
    assert [(r.title, r.fingerprint, r.nodes) for r in first] == [(r.title, r.fingerprint, r.nodes) for r in second]


def test_a_value_that_takes_a_detour_through_a_product_is_not_fused_around_it():
    def model(x, w):
        a = x + 1
        return a * 2 + a @ w

    regions = regions_of(model, torch.randn(8, 8), torch.randn(8, 8))
    assert titles(regions) == ["add → mul", "matmul", "add"]
    assert [len(region.outputs) for region in regions] == [2, 1, 1]


def test_clusters_that_would_wait_for_each_other_are_not_made():
    def model(x, y, w):
        a, c = x.sin(), y.cos()
        b, d = (c @ w).exp(), (a @ w).tanh()
        return (a + b) @ w, (c + d) @ w

    (graph,) = capture(model, (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8))).graphs
    with torch.no_grad():
        for whole, parts in zip(graph.module(*graph.inputs), split(graph)(*graph.inputs), strict=True):
            torch.testing.assert_close(parts, whole, rtol=0, atol=0)


def test_reductions_of_different_rows_stay_apart():
    def model(x):
        return F.softmax(F.softmax(x, -1).view(4, 2, 4), -1)

    assert titles(regions_of(model, torch.randn(4, 8))) == ["softmax", "softmax"]


def test_a_reduction_over_leading_dims_is_opaque():
    regions = regions_of(lambda x: (x * 2).sum(0) + 1, torch.randn(4, 8))
    assert [(region.title, region.kind) for region in regions] == [
        ("mul", "pointwise"),
        ("sum", "other"),
        ("add", "pointwise"),
    ]


def test_a_loss_averaged_over_the_rows_is_one_region():
    def loss(logits, target):
        return -F.log_softmax(logits, -1).gather(1, target[:, None]).mean()

    (region,) = regions_of(loss, torch.randn(6, 10), torch.arange(6))
    assert region.kind == "row"


def test_a_permuted_value_ends_a_row_region():
    def model(x):
        return F.layer_norm(x, (8,)).transpose(0, 1) * 2

    assert titles(regions_of(model, torch.randn(4, 8))) == ["layer norm", "mul"]


def test_a_shared_slice_does_not_glue_layers_together_and_the_whole_table_is_the_input(llama):
    rotary = [region for region in llama.graphs[0].regions if region.title == "rotary"]
    assert len(rotary) == 2
    assert all(tuple(node.meta["val"].shape) == (48, 16) for region in rotary for node in region.inputs[1:])


def test_an_operator_with_several_results_takes_its_getitems_along():
    regions = regions_of(lambda x: (x.topk(2).values * 2, x.max(-1).values + 1), torch.randn(4, 8))
    assert titles(regions) == ["topk", "mul", "max → add"]
    assert all(
        node.target is not operator.getitem for region in regions for node in region.inputs if region.kind == "row"
    )


def test_dropout_in_training_is_a_region_that_no_one_fuses():
    regions = regions_of(lambda x: F.dropout(x * 2, 0.5, training=True) + 1, torch.randn(4, 8))
    assert titles(regions) == ["mul", "dropout", "add"]
    assert [region.kind for region in regions] == ["pointwise", "other", "pointwise"]


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((2, 3, 4), [2], (6, 4)),
        ((2, 3, 4), [1, 2], (2, 12)),
        ((2, 3, 4), [1], None),
        ((2, 3, 1), [1], (2, 3)),
        ((2, 3, 4), [0, 1, 2], (1, 24)),
        ((2, 1, 4), [1], (8, 1)),
        ((), [], (1, 1)),
    ],
)
def test_trailing_dims(shape, dims, expected):
    assert trailing(shape, dims) == expected


STEPS = {
    "sin": lambda x, y: x.sin(),
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: x * 0.5 - y,
    "softmax": lambda x, y: F.softmax(x, -1),
    "norm": lambda x, y: F.layer_norm(x + y, (6,)),
    "product": lambda x, y: x @ y.mT @ y,
    "turned": lambda x, y: x.mT.contiguous().mT + y,
    "flipped": lambda x, y: torch.cat((-y[..., 3:], x[..., :3]), -1),
    "centred": lambda x, y: x - x.mean(-1, keepdim=True),
    "column": lambda x, y: x - y.amax(0, keepdim=True),
}


@settings(max_examples=12, deadline=None)
@given(names=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9)), min_size=3, max_size=9))
def test_any_program_is_covered_once_and_its_regions_recompose(names):
    def program(x, y):
        values = [x, y]
        for name, pick in names:
            values.append(STEPS[name](values[-1], values[pick % len(values)]))
        return values[-1], values[len(values) // 2]

    (graph,) = capture(program, (torch.randn(5, 6), torch.randn(5, 6))).graphs
    owners = Counter(node for region in graph.regions for node in region.nodes)
    assert set(owners.values()) <= {1}
    for node in graph.module.graph.nodes:
        assert node.op != "call_function" or node in owners or facts_of(node).kind in ("view", "constant")
    with torch.no_grad():
        for whole, parts in zip(graph.module(*graph.inputs), split(graph)(*graph.inputs), strict=True):
            torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
