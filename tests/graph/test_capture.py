"""Capture on the models and habits that break naive tracing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.errors import CaptureFailed
from autokernel.graph.capture import capture, make_backend
from autokernel.records import Role

aten = torch.ops.aten


def targets(graph):
    return [str(node.target) for node in graph.module.graph.nodes if node.op == "call_function"]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x):
        self.calls.add_(1)
        self.cache[1:2] = x[:1]
        return F.relu(self.proj(x) + self.calls).sum(-1) + self.cache.mean()


def test_parameters_and_inputs_have_their_paths_and_roles(llama):
    (graph,) = llama.graphs
    found = {node.meta["path"]: node.meta["role"] for node in graph.module.graph.find_nodes(op="placeholder")}
    assert found["tokens"] is Role.index
    assert found["cos"] is Role.buffer
    assert found["blocks.1.input_norm.weight"] is Role.parameter
    assert len(found) == len(graph.inputs)


def test_composites_stay_whole_and_assertions_are_gone(llama):
    (graph,) = llama.graphs
    names = targets(graph)
    assert {"aten.linear.default", "aten.silu.default", "aten.softmax.int", "aten.matmul.default"} <= set(names)
    assert not any("assert" in name or "type_as" in name for name in names)


def test_the_captured_graph_computes_what_the_model_computes(captures):
    for capture_ in captures.values():
        (graph,) = capture_.graphs
        assert capture_.skipped == ()
        assert all(isinstance(out, torch.Tensor) for out in graph.module(*graph.inputs))


def test_mutated_buffers_are_written_back_at_the_end():
    torch.manual_seed(0)
    model = Counting().eval()
    x = torch.randn(4, 8)
    expected = Counting().eval()
    expected.load_state_dict(model.state_dict())
    (graph,) = capture(model, (x,)).graphs
    assert targets(graph)[-2:] == ["aten.copy_.default"] * 2
    assert not any(name.endswith(("add_.Tensor", "index_put_.default")) for name in targets(graph)[:-2])
    with torch.no_grad():
        result = expected(x)
        assert torch.equal(graph.inputs[0], torch.zeros(8)), "the kept inputs are those before the call"
        inputs = [value.clone() for value in graph.inputs]
        (ours,) = graph.module(*inputs)
    torch.testing.assert_close(ours, result)
    by_path = {
        node.meta["path"]: v for node, v in zip(graph.module.graph.find_nodes(op="placeholder"), inputs, strict=True)
    }
    assert torch.equal(by_path["calls"], expected.calls)
    assert torch.equal(by_path["cache"], expected.cache)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        x = F.gelu(self.proj(x))
        torch._dynamo.graph_break()
        return x * 2 + 1


class Broken(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_after_graph_breaks_there_are_several_graphs_with_their_number_of_calls():
    found = capture(Broken(3).eval(), (torch.randn(4, 8),))
    assert [graph.calls for graph in found.graphs] == [3, 3]
    assert [graph.index for graph in found.graphs] == [0, 1]


def test_train_mode_batch_norm_is_captured_with_its_statistics():
    model = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU()).train()
    (graph,) = capture(model, (torch.randn(16, 8),)).graphs
    assert targets(graph).count("aten.copy_.default") == 3
    assert [region.kind for region in graph.regions if region.title == "relu"] == ["pointwise"]


def test_inference_batch_norm_is_the_composite_people_know(conv):
    assert "aten.batch_norm.default" in targets(conv.graphs[0])


def test_literals_of_one_element_are_constants_and_larger_ones_are_refused():
    (graph,) = capture(lambda x: x * torch.tensor(0.5) + 1, (torch.randn(4),)).graphs
    assert graph.regions[0].kind == "pointwise"
    with pytest.raises(CaptureFailed, match="baked in as a constant"):
        capture(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), (torch.randn(4),))


def test_a_graph_that_can_not_be_captured_runs_as_it_is_and_is_named():
    def model(x):
        y = x * torch.tensor([1.0, 2.0, 3.0, 4.0])
        torch._dynamo.graph_break()
        return torch.relu(y) + 1

    x = torch.randn(4)
    found = capture(model, (x,))
    assert len(found.graphs) == 1
    assert found.skipped[0].what == "graph 0"
    assert "baked in" in found.skipped[0].reason
    skipped, seen = [], []
    compiled = torch.compile(model, backend=make_backend(lambda graph, _: seen.append(graph), skipped=skipped))
    torch.testing.assert_close(compiled(x), model(x))
    assert len(skipped) == len(seen) == 1
    torch._dynamo.reset()


def test_operators_under_autocast_are_left_and_named():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.proj(x).sigmoid() * 2
            return y.float() + x

    found = capture(Mixed().eval(), (torch.randn(4, 8),))
    assert [region.title for region in found.graphs[0].regions] == ["add"]
    assert "autocast" in found.skipped[0].reason


def test_a_grad_mode_block_inside_inference_changes_nothing():
    def model(x):
        y = torch.sin(x) * 2
        with torch.no_grad():
            y = y + torch.cos(x)
        return torch.relu(y)

    (graph,) = capture(model, (torch.randn(4, 8),)).graphs
    assert len(graph.regions) == 1


def test_a_higher_order_operator_is_a_barrier():
    def model(x):
        y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
        return y * 2 + x.exp()

    x = torch.randn(4, 8)
    (graph,) = capture(model, (x,)).graphs
    assert not any("cond" in region.title for region in graph.regions)
    torch.testing.assert_close(graph.module(x)[0], model(x))


def test_symbolic_sizes_are_skipped_with_the_reason():
    skipped = []
    backend = make_backend(lambda graph, _: None, skipped=skipped)
    compiled = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(x), x * 2)
    assert "dynamic shapes" in skipped[0].reason
    torch._dynamo.reset()


def test_models_without_tensor_operations_are_refused_by_name():
    with pytest.raises(CaptureFailed, match="no tensor operation"):
        capture(lambda x: x, (3,))


def test_a_handler_may_rewrite_the_graph():
    def rewrite(captured, inputs):
        for node in captured.module.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.cos.default
        captured.module.recompile()
        return captured.module

    x = torch.randn(4)
    compiled = torch.compile(lambda x: torch.sin(x) + 1, backend=make_backend(rewrite))
    torch.testing.assert_close(compiled(x), x.cos() + 1)
    torch._dynamo.reset()


def test_calls_of_a_refused_graph_are_not_booked_on_the_graph_before_it():
    def model(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y * torch.tensor([1.0, 2.0, 3.0, 4.0])

    found = capture(model, (torch.randn(4),))
    assert "baked in" in found.skipped[0].reason
    assert [graph.calls for graph in found.graphs] == [1]


def test_capturing_leaves_inputs_and_buffers_as_they_were():
    model, x = Counting().eval(), torch.ones(4, 8)

    def writing(x):
        x.mul_(2)
        return model(x)

    capture(writing, (x,))
    assert torch.equal(x, torch.ones(4, 8))
    capture(model, (x,))
    capture(model, (x,))
    calls = model.calls.clone()
    capture(model, (x,))
    assert torch.equal(model.calls, calls)


def test_a_copy_that_the_caller_gets_is_not_taken_for_its_input():
    (graph,) = capture(lambda x: (x.repeat(1, 1), x + 1), (torch.randn(3, 4),)).graphs
    x = torch.randn(3, 4)
    assert all(out.data_ptr() != x.data_ptr() for out in graph.module(x))


def test_an_operator_that_can_not_be_lowered_does_not_cost_its_graph(monkeypatch):
    from autokernel.graph import facts

    def refuse(function, inputs):
        raise RuntimeError

    monkeypatch.setattr(facts, "lower", refuse)
    facts._lowered_facts.cache_clear()
    try:
        (graph,) = capture(lambda x: torch.cumsum(x, 1).exp() + 1, (torch.randn(3, 29),)).graphs
    finally:
        facts._lowered_facts.cache_clear()
    assert [region.kind for region in graph.regions] == ["pointwise"]


def test_a_bool_to_a_power_is_an_integer():
    (graph,) = capture(lambda x: (x > 0) ** 2, (torch.randn(3, 4),)).graphs
    assert graph.module(torch.ones(3, 4))[0].dtype == torch.int64


def test_outputs_that_are_a_changed_input_or_views_of_it_share_its_memory():
    def model(x):
        y = torch.sin(x)
        x.mul_(2)
        return y, x, x[:, :2], x.t()

    skipped = []
    compiled = torch.compile(model, backend=make_backend(lambda graph, _: graph.module, skipped=skipped))
    x = torch.randn(4, 8)
    twin = x.clone()
    with torch.no_grad():
        ours, theirs = compiled(x), model(twin)
    torch._dynamo.reset()
    assert skipped == []
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert ours[1] is x
    assert ours[2].data_ptr() == ours[3].data_ptr() == x.data_ptr()
    assert ours[3].stride() == (1, 8)
