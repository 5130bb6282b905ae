"""use.py of a run whose verification left CUDA graphs: it says what that means for outputs, and still runs."""

import ast

import pytest

from autokernel.records import KeptKernels, RunConfig
from autokernel.report.usefile import use_text


@pytest.mark.parametrize("target", ["python", "model.py"])
@pytest.mark.parametrize(
    ("mode", "said"),
    [("default", False), ("eager-graphs", False), ("reduce-overhead", True), ("max-autotune-graphs", True)],
)
def test_outputs_of_replayed_graphs_are_said_to_be_short_lived(tmp_path, target, mode, said):
    kept = KeptKernels(compiled_as=mode, torch="2.13.0", device_class="cuda", kernels=(), finished_at="now")
    (tmp_path / "winners.json").write_text(kept.dump())
    text = use_text(tmp_path, RunConfig(target=target, name="model", device="cuda"))
    ast.parse(text)
    assert ("valid until the model is called again" in text) == said


def test_a_run_that_was_not_verified_yet_has_a_use_file_too(tmp_path):
    ast.parse(use_text(tmp_path, RunConfig(target="model.py", name="model")))
