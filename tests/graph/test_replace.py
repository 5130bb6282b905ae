"""Regions exchanged inside a captured graph."""

import pytest
import torch

from autokernel.graph.capture import capture
from autokernel.graph.replace import replace, split


def standing_in(region, calls):
    def function(*inputs):
        calls.append(region.index)
        out = region.module(*inputs)
        return out[0] if len(region.outputs) == 1 else out

    return function


@pytest.mark.parametrize("name", ["llama_mini", "gpt2_block", "conv_net"])
def test_any_part_of_the_regions_may_be_replaced(captures, name):
    (graph,) = captures[name].graphs
    fused = [region for region in graph.regions if region.kind != "other"]
    for chosen in (fused, fused[::2], graph.regions, ()):
        calls = []
        module = replace(graph, {region.index: standing_in(region, calls) for region in chosen})
        with torch.no_grad():
            for ours, theirs in zip(module(*graph.inputs), graph.module(*graph.inputs), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert sorted(calls) == sorted(region.index for region in chosen)


def test_nothing_of_a_replaced_region_is_left(llama):
    (graph,) = llama.graphs
    module = replace(graph, {region.index: standing_in(region, []) for region in graph.regions if region.kind == "row"})
    names = {str(node.target) for node in module.graph.nodes}
    assert not names & {"aten.rsqrt.default", "aten.softmax.int", "aten.mean.dim"}
    assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")


def test_write_backs_survive_and_come_last():
    state = torch.nn.Module()
    state.register_buffer("seen", torch.zeros(4))

    def model(x):
        state.seen.add_(x.mean(0))
        return torch.softmax(x * 2, -1)

    (graph,) = capture(model, (torch.randn(3, 4),)).graphs
    module = replace(graph, {region.index: standing_in(region, []) for region in graph.regions if region.kind == "row"})
    ours, theirs = ([value.clone() for value in graph.inputs] for _ in range(2))
    torch.testing.assert_close(module(*ours), graph.module(*theirs))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)
    assert any(not torch.equal(value, before) for value, before in zip(ours, graph.inputs, strict=True))


def test_split_makes_every_region_a_submodule(llama):
    (graph,) = llama.graphs
    module = split(graph)
    called = [node.target for node in module.graph.find_nodes(op="call_module")]
    assert sorted(called) == sorted(f"region_{region.index}" for region in graph.regions)


def test_a_view_that_only_a_region_reads_is_gone_with_it():
    def model(x):
        y = x.exp()
        return torch.cat((-y[:, 2:], y[:, :2]), 1) * 2

    (graph,) = capture(model, (torch.randn(3, 4),)).graphs
    assert len(graph.regions) == 1
    module = split(graph)
    assert {node.op for node in module.graph.nodes} == {"placeholder", "call_module", "call_function", "output"}
    assert not any("slice" in str(node.target) for node in module.graph.nodes)
    torch.testing.assert_close(module(*graph.inputs), graph.module(*graph.inputs))
