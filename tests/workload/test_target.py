"""Targets as users give them, right and wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autokernel.errors import (
    DeviceUnavailable,
    OutOfMemory,
    TargetFailed,
    TargetInvalid,
    TargetNotFound,
    UnsupportedTarget,
)
from autokernel.workload import from_objects, load

EXAMPLES = Path(__file__).parents[2] / "examples"

GOOD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(0.9)
    def forward(self, x, scale=1.0):
        return self.drop(self.proj(x)) * scale

def get_init_inputs():
    return [6]

def get_inputs():
    return [torch.randn(3, 6)]

class Other(Model):
    pass

instance = Model(6)

def make():
    return Model(2), [torch.randn(5, 2)], {"scale": 2.0}

def weighted():
    model = Model(2)
    return [(3, (model, [torch.randn(5, 2)])), (1.5, (model, [torch.randn(7, 2)], {"scale": 0.5}))]

def several():
    return [(1, (Model(2), [torch.randn(5, 2)])), (1, (Model(2), [torch.randn(5, 2)]))]
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="target.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_kernelbench_file_gives_a_model_at_rest_with_its_inputs(write):
    found = load(write(GOOD))
    assert found.name == "target"
    assert not found.model.training
    (case,) = found.cases
    assert case.args[0].shape == (3, 6)
    assert found.model(*case.args).shape == (3, 6)
    assert any("3×6" in line for line in found.assumptions)


@pytest.mark.parametrize(("name", "shapes"), [("Other", [(3, 6)]), ("instance", [(3, 6)]), ("make", [(5, 2)])])
def test_a_name_in_a_file_may_be_a_class_an_instance_or_a_function(write, name, shapes):
    found = load(f"{write(GOOD)}:{name}")
    assert [tuple(case.args[0].shape) for case in found.cases] == shapes
    assert found.name == f"target-{name}"


def test_weighted_inputs_keep_their_weights(write):
    found = load(f"{write(GOOD)}:weighted")
    assert [case.weight for case in found.cases] == [3.0, 1.5]
    assert found.cases[1].kwargs == {"scale": 0.5}


def test_several_models_are_refused(write):
    with pytest.raises(TargetInvalid, match="several models"):
        load(f"{write(GOOD)}:several")


def test_weights_and_inputs_are_the_same_in_every_load_and_the_callers_random_state_is_kept(write):
    path = write(GOOD)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = load(path), load(path)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.cases[0].args[0], second.cases[0].args[0])
    assert torch.equal(first.model.proj.weight, second.model.proj.weight)


def test_dtype_and_batch_are_applied_to_model_and_inputs(write):
    found = load(write(GOOD), dtype="bfloat16", batch=4)
    assert found.model.proj.weight.dtype is torch.bfloat16
    assert found.cases[0].args[0].dtype is torch.bfloat16
    assert found.cases[0].args[0].shape == (4, 6)
    with pytest.raises(TargetInvalid, match="dtype float7"):
        load(write(GOOD), dtype="float7")


def test_a_file_may_import_its_neighbours_also_late(write, tmp_path):
    write("WIDTH = 4\n", "neighbour_early.py")
    write("SCALE = 2.0\n", "neighbour_late.py")
    text = """
import torch
from torch import nn
from neighbour_early import WIDTH
class Model(nn.Module):
    def forward(self, x):
        from neighbour_late import SCALE
        return x * SCALE
def get_inputs():
    return [torch.ones(WIDTH)]
"""
    before = list(sys.path)
    found = load(write(text))
    assert torch.equal(found.model(*found.cases[0].args), torch.full((4,), 2.0))
    assert sys.path[: len(before)] == before


def test_two_files_of_one_name_do_not_meet(tmp_path):
    for folder, width in (("a", 3), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "target.py").write_text(
            GOOD.replace("[6]", f"[{width}]").replace("(3, 6)", f"(3, {width})")
        )
    one, other = (load(str(tmp_path / folder / "target.py")) for folder in ("a", "b"))
    assert type(one.model) is not type(other.model)
    assert (one.cases[0].args[0].shape[1], other.cases[0].args[0].shape[1]) == (3, 5)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TargetNotFound, match=r"no_such\.py"):
        load(str(tmp_path / "no_such.py"))
    with pytest.raises(TargetNotFound):
        load(str(tmp_path / "no_such.py:name"))


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ("x = 1\n", "", "no `Model`"),
        ("Model = 3\n", "", "not a Module class"),
        (GOOD.replace("get_inputs", "get_input"), "", "no `get_inputs"),
        (GOOD, ":Missing", "no `Missing`"),
        (GOOD + "\nnumber = 3\n", ":number", "`number` is a int"),
        (GOOD + "\ndef wrong():\n    return 3\n", ":wrong", r"must return \(model"),
        (GOOD + "\ndef empty():\n    return []\n", ":empty", "must list"),
        (GOOD.replace("return [torch.randn(3, 6)]", "return 5"), "", "not a list"),
    ],
)
def test_what_is_not_a_target_is_refused_with_the_reason(write, text, suffix, message):
    with pytest.raises(TargetInvalid, match=message):
        load(write(text) + suffix)


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--seq", {"seq": 8}),
        ("--image", {"image": 64}),
        ("--workload decode", {"workload": "decode"}),
        ("--random-weights", {"random_weights": True}),
        ("--trust-remote-code", {"trust_remote_code": True}),
    ],
)
def test_an_option_for_library_models_is_refused_for_a_file_not_ignored(write, flag, given):
    with pytest.raises(UnsupportedTarget, match=f"^{flag} means nothing"):
        load(write(GOOD), **given)


def test_inputs_that_do_not_fit_show_the_users_own_frames(write):
    path = write(GOOD.replace("(3, 6)", "(3, 5)"))
    with pytest.raises(TargetFailed) as caught:
        load(path)
    message = str(caught.value)
    assert "running the model on its example inputs" in message
    assert "return self.drop(self.proj(x)) * scale" in message
    assert "mat1 and mat2" in message
    assert "site-packages" not in message
    assert "autokernel/workload" not in message.replace(os.sep, "/")


@pytest.mark.parametrize(
    ("text", "doing", "error"),
    [
        ("import torch\n1 / 0\n", "being imported", "ZeroDivisionError"),
        ("def broken(:\n", "being imported", "SyntaxError"),
        ("import no_such_package_at_all\n", "being imported", "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "being imported", "SystemExit"),
        (GOOD.replace("return [6]", "return [6, 7]"), "building the model", "TypeError"),
        (GOOD.replace("return [torch.randn(3, 6)]", "raise KeyError('x')"), "making example inputs", "KeyError"),
    ],
)
def test_the_users_exceptions_are_named_with_what_was_being_done(write, text, doing, error):
    with pytest.raises(TargetFailed) as caught:
        load(write(text))
    assert doing in str(caught.value)
    assert error in str(caught.value)


def test_too_large_tensors_are_out_of_memory(write):
    text = GOOD.replace("torch.randn(3, 6)", "torch.empty(1 << 46)")
    with pytest.raises(OutOfMemory, match="making example inputs"):
        load(write(text))
    with pytest.raises(OutOfMemory, match="running the model"):
        from_objects(lambda x: x.expand(1 << 46).clone(), (torch.ones(1),))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_named(write):
    with pytest.raises(DeviceUnavailable, match="cuda"):
        load(write(GOOD), device="cuda")


def test_objects_of_this_process_are_a_workload():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    found = from_objects(model, (torch.randn(2, 4),))
    assert found.name == "Sequential"
    assert not model.training
    assert from_objects(torch.sin, (torch.ones(3),)).name == "sin"
    assert from_objects(lambda x, y=1: x + y, (torch.ones(3),), {"y": 2}).cases[0].kwargs == {"y": 2}
    with pytest.raises(TargetInvalid, match="can't be called"):
        from_objects(3)
    with pytest.raises(TargetFailed):
        from_objects(model, (torch.randn(2, 5),))


def test_trying_out_leaves_the_example_inputs_alone():
    x = torch.ones(3)
    from_objects(lambda x: x.mul_(2), (x,))
    assert torch.equal(x, torch.ones(3))
    model = nn.BatchNorm1d(3).eval()
    model.register_forward_hook(lambda module, *_: (module.num_batches_tracked.add_(1), None)[1])
    from_objects(model, (torch.ones(2, 3),))
    assert int(model.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [(5, None, "not a int"), ({"x": 1}, None, "given as kwargs"), ((), [1], "kwargs must be a dict")],
)
def test_arguments_of_the_wrong_kind_are_named(args, kwargs, message):
    with pytest.raises(TargetInvalid, match=message):
        from_objects(torch.sin, args, kwargs)


@pytest.mark.parametrize("name", ["llama_mini", "gpt2_block", "conv_net"])
def test_the_examples_load(name):
    found = load(str(EXAMPLES / f"{name}.py"))
    with torch.no_grad():
        assert torch.isfinite(found.model(*found.cases[0].args)).all()


def test_errors_survive_a_pipe_to_another_process(write):
    """Named errors are shown by the command line; here, that their text needs nothing of the failed process."""
    code = (
        "import sys; from autokernel.errors import AutokernelError; from autokernel.workload import load\n"
        "try: load(sys.argv[1])\nexcept AutokernelError as error: print(error); sys.exit(error.exit_code)"
    )
    path = write("x = 1\n")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.startswith(f"{path} can't be used as a target")
