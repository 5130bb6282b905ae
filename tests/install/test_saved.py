"""What a run keeps for the model, read in another process as well as in this one."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from autokernel.errors import BrokenFile, KernelInvalid, NewerSchema, NotARun
from autokernel.install.backend import FallbackWarning
from autokernel.install.saved import FILE, apply_saved, load_saved, load_winners, save_winners, saved_backend

MODEL = """
import torch.nn.functional as F


def model(x, w):
    return F.silu(x) * w
"""


def model(x, w):
    return F.silu(x) * w


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(16, 32), torch.randn(16, 32)


@pytest.fixture
def run(tmp_path, inputs, winners_of):
    save_winners(tmp_path, winners_of(model, *inputs), "eager")
    return tmp_path


@torch.no_grad()
def test_what_was_saved_runs_again(run, inputs):
    assert [winner.speedup_alone for winner in load_winners(run)] == [1.5]
    applied = apply_saved(run, model)
    torch.testing.assert_close(applied(*inputs), model(*inputs))
    assert sum(applied.engaged(*inputs).values()) == 1


@torch.no_grad()
def test_the_backend_replaces_regions_under_torch_compile(run, inputs):
    compiled = torch.compile(model, backend=saved_backend(run))
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    with torch.profiler.profile() as profiler:
        compiled(*inputs)
    assert any(event.name.startswith("autokernel::") for event in profiler.events())


def test_the_backend_leaves_gradients_whole(run, inputs):
    x = inputs[0].clone().requires_grad_()
    torch.compile(model, backend=saved_backend(run))(x, inputs[1]).sum().backward()
    mine, x.grad = x.grad, None
    model(x, inputs[1]).sum().backward()
    torch.testing.assert_close(mine, x.grad)


def test_a_fresh_process_runs_the_kernels(run, inputs, tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    code = f"""
import torch
from mine import model
from autokernel.install.saved import apply_saved
from pathlib import Path
x, w = torch.randn(16, 32), torch.randn(16, 32)
with torch.no_grad():
    faster = apply_saved(Path({str(run)!r}), model)
    torch.testing.assert_close(faster(x, w), model(x, w))
    print(sum(faster.engaged(x, w).values()), faster.fallbacks)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1 0", done.stderr
    assert done.stderr == ""


def test_under_another_torch_version_the_original_runs_and_it_is_said_once(run, inputs):
    data = json.loads((run / FILE).read_text())
    (run / FILE).write_text(json.dumps({**data, "torch": "2.0.0"}))
    applied = apply_saved(run, model)
    with pytest.warns(FallbackWarning, match=r"torch 2\.0\.0"):
        assert torch.equal(applied(*inputs), model(*inputs))
    assert applied.fallbacks == 1
    with pytest.warns(FallbackWarning, match=r"torch 2\.0\.0"):
        saved_backend(run)


def test_a_model_on_another_device_runs_as_it_is(run):
    elsewhere = torch.nn.Linear(4, 4, device="meta")
    with pytest.warns(FallbackWarning, match="the model is on meta"), torch.no_grad():
        assert apply_saved(run, elsewhere)(torch.empty(2, 4, device="meta")).shape == (2, 4)


def test_files_that_cannot_be_read_are_named_errors(tmp_path, run):
    with pytest.raises(NotARun, match="was not verified"):
        load_saved(tmp_path / "nowhere")
    (run / FILE).write_text('{"schema": 99}')
    with pytest.raises(NewerSchema):
        load_saved(run)
    (run / FILE).write_text('{"schema"')
    with pytest.raises(BrokenFile):
        load_saved(run)


@torch.no_grad()
def test_nothing_kept_is_the_best_baseline(tmp_path, inputs):
    save_winners(tmp_path, [], "eager")
    assert load_winners(tmp_path) == []
    assert torch.equal(apply_saved(tmp_path, model)(*inputs), model(*inputs))


def test_a_kernel_that_does_not_compile_here_is_a_named_error(tmp_path, inputs, winners_of):
    (winner,) = winners_of(model, *inputs)
    broken = dataclasses.replace(
        winner, source=winner.source.replace('SOURCE = r"""', 'SOURCE = r"""no C++ at all;', 1)
    )
    assert broken.source != winner.source
    save_winners(tmp_path, [broken], "eager")
    with pytest.raises(KernelInvalid, match=winner.task.id):
        apply_saved(tmp_path, model)
    with pytest.raises(KernelInvalid, match=winner.task.id):
        saved_backend(tmp_path)
