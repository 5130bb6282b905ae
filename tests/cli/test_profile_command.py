"""`autokernel profile` as it is typed: the tables, the page, the trace, the data."""

import json
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from autokernel.api import Options
from autokernel.cli.main import app
from autokernel.records import Ceilings, Profile, RegionRow
from autokernel.report.advice import advise

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(self.line(self.norm(x))) * 2 + x  # <script>alert("a & b")</script>

def get_inputs():
    return [torch.randn(64, 64)]
"""


def autokernel(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.py"
    path.write_text(MODEL)
    return path


@pytest.mark.slow
def test_one_call_gives_the_tables_the_page_and_the_trace(target, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    done = autokernel("profile", target, "--device", "cpu", "--html", page, "--trace", trace)
    assert done.exit_code == 0, done.output
    for words in ("Where the time goes", "By source line", "What to do", f"{page} written", f"{trace} written"):
        assert words in done.output.replace("\n", "") or words in done.output
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "What to do" in text and "small.py:" in text
    assert "<script" not in text
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.slow
def test_json_is_the_profile_with_its_advice_and_nothing_else_on_standard_output(target):
    done = autokernel("profile", target, "--device", "cpu", "--threads", "1", "--json")
    facts = json.loads(done.stdout)
    assert facts["flags"] == ["--threads", "1"] and facts["masks"] == [] and facts["outside_us"] == 0.0
    assert all(set(each) == {"kind", "title", "detail", "saves", "command"} for each in facts["advice"])


@pytest.mark.parametrize("flag", ["--html", "--trace"])
def test_a_file_that_can_t_be_written_is_told_before_anything_is_measured(flag, tmp_path):
    done = autokernel("profile", tmp_path / "no_such_model.py", flag, tmp_path / "none" / "file")
    assert done.exit_code == 2
    assert "can't be written: No such file" in re.sub(r"\s+", " ", done.output)
    assert not list(tmp_path.iterdir())


def test_a_model_that_can_t_be_loaded_leaves_no_page_behind(tmp_path):
    done = autokernel("profile", tmp_path / "no_such_model.py", "--device", "cpu", "--html", tmp_path / "page.html")
    assert done.exit_code == 2 and "There is no file" in done.output
    assert not list(tmp_path.iterdir())


def test_every_command_that_is_advised_is_one_that_the_command_line_takes():
    wanted = Options(
        dtype="bfloat16", batch=8, seq=128, image=64, workload="decode", random_weights=True, trust_remote_code=True,
        threads=2,
    )  # fmt: skip
    rows = [
        RegionRow(
            task=None, fingerprint=name, shape_key="", title=name, kind="row", occurrences=1, time_us=500.0, share=0.5,
            floor_us=50.0, recoverable_us=450.0, flops=0, min_bytes=0, generator=name or None,
        )
        for name in ("row", "")
    ]  # fmt: skip
    rows[1] = rows[1].model_copy(update={"fingerprint": "scan"})
    profile = Profile(
        target="my model.py:-x", device="cuda:0", threads=2, total_us=1000.0, uninstrumented_us=500.0, attributed=1.0,
        regions=tuple(rows), lines=(), flags=wanted.flags(),
        ceilings=Ceilings(device="d", threads=2, bandwidth=((1, 1.0),), matrix={}, measured_at="now"),
    )  # fmt: skip
    commands = [shlex.split(each.command) for each in advise(profile) if each.command]
    assert [command[1] for command in commands] == ["profile", "optimize", "extract"]
    known = typer.main.get_command(app).commands
    for _, name, *arguments in commands:
        context = known[name].make_context(name, list(arguments))
        assert context.params["target"] == "my model.py:-x" and context.params["batch"] == 8


def test_flags_are_those_that_were_typed():
    assert Options(device="cuda").flags() == ()
    wanted = Options(dtype="bfloat16", batch=8, seq=128, workload="decode", random_weights=True, threads=2)
    expected = "--dtype bfloat16 --batch 8 --seq 128 --workload decode --random-weights --threads 2"
    assert wanted.flags() == tuple(expected.split())
