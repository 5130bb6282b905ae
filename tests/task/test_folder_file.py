"""KernelBench files as tasks."""

import pytest
import torch

from autokernel.errors import TargetFailed, TargetInvalid
from autokernel.graph.fingerprint import fingerprint
from autokernel.records import Role
from autokernel.task.folder import from_file

FILE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.groups = groups
    def forward(self, x, index, power):
        x = self.norm(self.proj(x)) ** power
        return F.embedding(index, x).mean(-1), x

def get_init_inputs():
    return [8, 2]

def get_inputs():
    return [torch.rand(5, 8), torch.randint(0, 5, (3,)), 2]
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "19_Some_Problem.py"
    path.write_text(FILE)
    return path


def test_inputs_are_arguments_then_parameters_then_buffers(path):
    loaded = from_file(path)
    names = [spec.name for spec in loaded.task.inputs]
    assert names == [
        "x", "index", "proj_weight", "proj_bias", "norm_weight", "norm_bias",
        "norm_running_mean", "norm_running_var", "norm_num_batches_tracked",
    ]  # fmt: skip
    roles = [spec.role for spec in loaded.task.inputs]
    assert roles == [Role.activation, Role.index, *[Role.parameter] * 4, *[Role.buffer] * 3]
    assert loaded.task.inputs[1].high == 5
    assert loaded.path == path
    assert loaded.task.id == "19_Some_Problem"


def test_the_reference_takes_every_input_and_is_at_rest(path):
    loaded = from_file(path)
    inputs = [torch.rand(5, 8), torch.tensor([4, 0, 1]), torch.eye(8), *[torch.ones(8)] * 5, torch.tensor(0)]
    picked, x = loaded.reference(*inputs)
    expected = ((inputs[0] + 1 - 1) * torch.rsqrt(torch.tensor(1.0 + 1e-5)) + 1) ** 2
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(picked, expected[[4, 0, 1]].mean(-1))
    for ours, theirs in zip(loaded.module(*inputs), (picked, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert loaded.task.fingerprint == fingerprint(loaded.module)[0]
    assert [spec.shape for spec in loaded.task.outputs] == [(3,), (5, 8)]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("torch.softmax(x * 2, -1)", "row"),
        ("x * torch.sigmoid(x)", "pointwise"),
        ("torch.softmax(x, 0)", "other"),
        ("x @ x.T", "other"),
    ],
)
def test_the_kind_follows_from_the_graph(tmp_path, body, kind):
    path = tmp_path / "one.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        f"    def forward(self, x):\n        return {body}\n"
        "def get_inputs():\n    return [torch.randn(6, 4)]\n"
    )
    assert from_file(path).task.kind == kind


def test_what_can_not_be_traced_is_the_users_to_see(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        return x * 2 if x.sum() > 0 else x\n"
        "def get_inputs():\n    return [torch.randn(6, 4)]\n"
    )
    with pytest.raises(TargetFailed, match="being traced"):
        from_file(path)
    path.write_text("x = 1\n")
    with pytest.raises(TargetInvalid, match="Model"):
        from_file(path)
