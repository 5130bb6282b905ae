"""Task folders written from regions and read back."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.errors import BrokenFile, NewerSchema
from autokernel.graph.capture import capture
from autokernel.graph.fingerprint import fingerprint
from autokernel.records import Role, Task
from autokernel.task.folder import group, load, observe, slug, write
from autokernel.task.observe import describe


class Attention(nn.Module):
    """Two layers of: residual + norm, masked scores, softmax; an embedding in front."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.proj = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.register_buffer("mask", torch.full((24, 24), float("-inf")).triu(1))
        self.register_buffer("keep", torch.ones(24, 24).tril().bool())

    def forward(self, tokens):
        x = self.table(tokens)
        length = tokens.shape[1]
        for norm, proj in zip(self.norms, self.proj, strict=True):
            h = norm(x + 1)
            scores = h @ h.transpose(-2, -1) / 4
            weights = F.softmax(scores + self.mask[:length, :length], dim=-1)
            x = x + proj(weights @ h).masked_fill(~self.keep[0, :1], 0.0)
        return x


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    return capture(Attention().eval(), (torch.randint(0, 50, (1, 12)),))


@pytest.fixture(scope="module")
def written(captured, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tasks")
    statistics = observe(captured.graphs[0])
    groups = group(captured)
    tasks = [write(directory, number, regions, statistics) for number, regions in enumerate(groups, start=1)]
    return directory, tasks, groups


def find(tasks, title):
    return next(task for task in tasks if task.title == title)


def test_equal_regions_are_one_group(captured, written):
    _, tasks, groups = written
    assert sum(len(regions) for regions in groups) == len(captured.graphs[0].regions)
    assert sum(task.occurrences for task in tasks) == len(captured.graphs[0].regions)
    softmax = find(tasks, "div → add → softmax")
    assert softmax.occurrences == 2
    assert len(softmax.sites) == 2
    assert any("F.softmax" in line for line in softmax.sites[0].lines)


def test_every_task_reads_back_as_the_same_computation(written):
    directory, tasks, groups = written
    for task, regions in zip(tasks, groups, strict=True):
        loaded = load(directory / task.id)
        assert loaded.task == task
        assert fingerprint(loaded.module) == (regions[0].fingerprint, regions[0].shape_key)
        assert [node.name for node in loaded.module.graph.find_nodes(op="placeholder")] == [s.name for s in task.inputs]
        torch.manual_seed(0)
        inputs = [_value(spec) for spec in task.inputs]
        with torch.no_grad():
            expected = regions[0].module(*inputs)
        for results in (loaded.reference(*inputs), loaded.module(*inputs)):
            for ours, theirs, spec in zip(results, expected, task.outputs, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
                assert (tuple(ours.shape), ours.stride()) == (spec.shape, spec.stride)


def _value(spec):
    dtype = getattr(torch, spec.dtype)
    values = torch.randint(0, spec.high or 2, spec.shape).to(dtype)
    if dtype.is_floating_point:
        values = torch.randn(spec.shape, dtype=dtype)
    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype).copy_(values)


def test_inputs_say_what_they_are_to_the_model(written):
    _, tasks, _ = written
    table, tokens = find(tasks, "embedding").inputs
    assert (table.role, tokens.role) == (Role.parameter, Role.index)
    assert (tokens.domain, tokens.high) == ("index", 50)
    scores, mask = find(tasks, "div → add → softmax").inputs
    assert (scores.role, mask.role) == (Role.activation, Role.mask)
    assert mask.domain == "causal_mask"
    assert mask.shape == (24, 24)
    assert mask.statistics.fraction_inf == pytest.approx(23 / 48)
    weight = find(tasks, "add → layer norm").inputs[1]
    assert (weight.name, weight.role) == ("weight", Role.parameter)
    assert weight.statistics.mean == 1.0


def test_free_sizes_are_found_and_written_by_name(written):
    directory, tasks, _ = written
    norm = find(tasks, "add → layer norm")
    assert {dim.value for dim in norm.dims.values() if dim.free} == {12, 32}
    text = (directory / norm.id / "reference.py").read_text()
    assert "x.shape[2]" in text
    namespace = {}
    exec(compile(text, "reference.py", "exec"), namespace)
    out = namespace["Model"]()(torch.randn(1, 5, 7), torch.ones(7), torch.zeros(7))
    assert (out[0] if isinstance(out, tuple) else out).shape == (1, 5, 7)


def test_folders_are_named_by_number_and_title(written):
    directory, tasks, _ = written
    assert sorted(path.name for path in directory.iterdir()) == sorted(task.id for task in tasks)
    assert slug(3, "add → rms norm") == "03-add-rms-norm"
    assert slug(12, "→") == "12-region"
    assert len(slug(1, "a very long title " * 10)) <= 43


def test_writing_is_deterministic(written, tmp_path):
    _, _, groups = written
    again = write(tmp_path, 1, groups[0], {})
    other = write(tmp_path / "other", 1, groups[0], {})
    assert again == other
    texts = [(base / again.id / "reference.py").read_text() for base in (tmp_path, tmp_path / "other")]
    assert texts[0] == texts[1]


def test_a_reference_that_was_changed_is_refused(written, tmp_path):
    _, _, groups = written
    task = write(tmp_path, 1, groups[1], {})
    path = tmp_path / task.id / "reference.py"
    text = path.read_text()
    path.write_text(text.replace("x + 1", "x + 2"))
    with pytest.raises(BrokenFile, match="something else than"):
        load(tmp_path / task.id)
    path.write_text(text.replace("class Model", "class Muddle"))
    with pytest.raises(BrokenFile, match="Model"):
        load(tmp_path / task.id)
    path.write_text("def broken(:\n")
    with pytest.raises(BrokenFile, match="SyntaxError"):
        load(tmp_path / task.id)


def test_missing_and_newer_folders_are_named(written, tmp_path):
    with pytest.raises(BrokenFile):
        load(tmp_path / "nothing")
    _, _, groups = written
    task = write(tmp_path, 1, groups[0], {})
    path = tmp_path / task.id / "task.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(NewerSchema, match="99"):
        load(tmp_path / task.id)


def test_task_json_holds_no_values(written):
    directory, tasks, _ = written
    for task in tasks:
        text = (directory / task.id / "task.json").read_text()
        assert len(text) < 20_000
        assert Task.load(directory / task.id / "task.json") == task


@pytest.mark.parametrize(
    ("value", "role", "domain", "mask"),
    [
        (torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf), Role.buffer, "causal_mask", True),
        (torch.zeros(3, 5).masked_fill(torch.ones(3, 5).triu(3).bool(), -1e9), Role.activation, "causal_mask", True),
        (torch.zeros(4, 4).masked_fill(torch.eye(4).bool(), -math.inf), Role.buffer, "structured", True),
        (torch.ones(4, 4).tril().bool(), Role.buffer, "causal_mask", True),
        (torch.eye(4).bool(), Role.buffer, "bool", True),
        (torch.arange(4), Role.index, "index", False),
        (torch.rand(9) + 1, Role.buffer, "positive", False),
        (torch.rand(9) + 1, Role.parameter, "real", False),
        (torch.linspace(-1, 1, 9), Role.buffer, "unit", False),
        (torch.tensor([math.nan, -1.0, 2.0]), Role.activation, "real", False),
        (torch.zeros(0, 3), Role.activation, "real", False),
        (torch.zeros(3, dtype=torch.complex64), Role.activation, "real", False),
    ],
)
def test_values_are_described(value, role, domain, mask):
    found = describe(value, role)
    assert (found.domain, found.mask) == (domain, mask)


def test_statistics_are_of_the_finite_values_and_extremes_of_all():
    value = torch.randn(1 << 20)
    value[12345] = 100.0
    found = describe(value, Role.activation).statistics
    assert found.maximum == 100.0
    assert abs(found.mean) < 0.02
    assert abs(found.std - 1) < 0.05
    value[:1000] = math.inf
    assert describe(value).statistics.fraction_inf > 0
    assert math.isfinite(describe(value).statistics.mean)
