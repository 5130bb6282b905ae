"""The Chrome trace: readable JSON, calls of the model and regions by name, the model as it was."""

import gzip
import json

import pytest
import torch
from torch import nn

from autokernel.graph.capture import capture
from autokernel.profile.chrome import CALLS, write_trace
from autokernel.workload import from_objects


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.LayerNorm(32), nn.Linear(32, 32)
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x + self.line(self.norm(x)) * 2


@pytest.fixture(scope="module")
def workload():
    return from_objects(Block().eval(), (torch.randn(8, 32),), None)


def write(path, workload):
    case = workload.cases[0]
    write_trace(path, workload, capture(workload.model, case.args, case.kwargs))
    return path


def test_calls_and_regions_are_ranges_of_the_trace(workload, tmp_path):
    path = write(tmp_path / "trace.json", workload)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert [name for name in ranges if name.startswith("model")] == [f"model, call {n + 1}" for n in range(CALLS)]
    assert "captured graph 0" in ranges and "linear" in ranges
    assert any(event["name"] == "aten::addmm" and event["dur"] > 0 for event in events if event.get("ph") == "X")


def test_a_name_that_ends_in_gz_is_compressed(workload, tmp_path):
    path = write(tmp_path / "trace.json.gz", workload)
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_the_model_s_buffers_are_as_before(workload, tmp_path):
    write(tmp_path / "trace.json", workload)
    assert workload.model.seen == 0


def test_a_folder_that_is_not_there_is_an_error(workload, tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none" / "trace.json", workload)
