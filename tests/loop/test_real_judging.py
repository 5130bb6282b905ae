"""One submit through the real judge: sandbox, compiler, clock. What the numbers are does not matter here."""

import pytest

from autokernel.loop.folder import RunFolder
from autokernel.loop.submit import submit
from autokernel.records import Decision, FirstIncumbent, Outcome, RunConfig, Stage
from autokernel.task.file import from_file
from autokernel.testing.paper import paper_profile

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tanh(a) * 0.5 + b


def get_init_inputs():
    return []


def get_inputs():
    return [torch.randn(64, 512), torch.randn(64, 512)]
"""

KERNEL = '''
import ctypes

import torch
from autokernel_loader import load

LANGUAGE = "cpp"
SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void launch(const float* a, const float* b, float* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = std::tanh(a[i]) * HALF + b[i];
}
"""
SERVES = "task"

_library = load(SOURCE)


def launch(a, b, out):
    a, b = a.contiguous(), b.contiguous()
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, out)]
    _library.launch(*pointers, ctypes.c_int64(out.numel()))
'''


@pytest.fixture
def run(tmp_path):
    file = tmp_path / "reference.py"
    file.write_text(REFERENCE)
    task = from_file(file).task.model_copy(update={"id": "01-tanh-add"})

    def fill(directory):
        (directory / task.id).mkdir()
        (directory / task.id / "task.json").write_text(task.dump())
        (directory / task.id / "reference.py").write_text(REFERENCE)
        return paper_profile({task.id: 0.2}, {task.id: task})

    with RunFolder.create(tmp_path / "run", RunConfig(target=str(file), name="x", threads=1), fill) as folder:
        # meeting eager only spares this test Inductor's compilation
        folder.write_first_incumbent(FirstIncumbent(task=task.id, kind="eager"))
    return tmp_path / "run"


def test_a_right_and_a_wrong_kernel_go_through_the_real_judge_into_the_journal(run, tmp_path):
    draft = tmp_path / "draft.py"
    draft.write_text(KERNEL.replace("HALF", "0.5f"))
    trial, verdict = submit(run, "1", draft)
    assert trial.correctness == "PASS", verdict.explanation
    assert trial.latency_us is not None
    assert verdict.isolation in ("bubblewrap", "plain")
    if trial.decision is Decision.kept:  # whether it is faster than eager is this machine's affair
        assert verdict.verdict is Outcome.accepted
        assert "eager" in verdict.baselines

    draft.write_text(KERNEL.replace("HALF", "0.4f"))
    trial, verdict = submit(run, "1", draft)
    assert (trial.decision, trial.correctness) == (Decision.reverted, "FAIL")
    assert (verdict.verdict, verdict.stage) == (Outcome.rejected, Stage.smoke)
    assert [line.experiment for line in RunFolder.open(run).trials] == [1, 2]
