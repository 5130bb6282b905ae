"""`autokernel doctor --self-test`: few cases here, all of them are tests/judge/test_cheaters.py's."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autokernel.cli.main import app
from autokernel.doctor import self_test as module
from autokernel.doctor.self_test import self_test
from autokernel.judge.isolation import bubblewrap_problem
from autokernel.records import Outcome
from autokernel.testing.cheaters import CHEATS, CUDA_CHEATS, CUDA_ODD, ODD

PLAIN = next(case for case in ODD if case.name == "plain")
UNSET = next(case for case in CHEATS if case.name == "unset tail")
NETWORK = next(case for case in CHEATS if case.name == "asking the network")


@pytest.fixture
def few(monkeypatch):
    def choose(cheats, odd=(PLAIN,)):
        monkeypatch.setattr(module, "CHEATS", tuple(cheats))
        monkeypatch.setattr(module, "ODD", tuple(odd))

    choose([UNSET])
    return choose


def run(*words):
    return CliRunner().invoke(app, ["doctor", "--self-test", "--device", "cpu", *words])


def test_a_case_its_twin_and_an_odd_kernel_are_told_as_they_end(few):
    told = []
    found = self_test("cpu", told=told.append)
    assert [case.name for case in found.cases] == ["plain", "unset tail", "twin of: unset tail"]
    assert told == list(found.cases)
    assert found.passed
    assert [(case.verdict, case.stage) for case in found.cases][:2] == [("accepted", "edges"), ("rejected", "smoke")]


def test_the_json_has_the_cases_and_nothing_else(few):
    done = run("--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert set(data) == {"cases"}
    assert set(data["cases"][0]) == {"name", "expected", "verdict", "stage", "reason", "seconds"}
    assert data["cases"][1]["reason"] == "not_written"


def test_a_cheat_that_is_not_refused_for_its_reason_ends_with_status_1_and_says_what_was_expected(few):
    few([dataclasses.replace(UNSET, reasons=(CHEATS[0].reasons[0].__class__.timeout,))])
    done = run()
    assert done.exit_code == 1
    assert "WRONG unset tail" in done.stdout and "expected rejected at smoke: timeout" in done.stdout
    assert "can't be trusted" in done.stdout


def test_where_an_honest_kernel_is_refused_the_rest_is_left_out(few):
    few([UNSET], [dataclasses.replace(UNSET, verdict=Outcome.accepted)])
    done = run()
    assert done.exit_code == 1
    assert "the rest was left out" in done.stdout and "twin of" not in done.stdout


def test_what_only_bubblewrap_refuses_is_not_run_without_it_and_not_called_passed(few):
    few([NETWORK])
    done = run("--isolation", "plain")
    assert done.exit_code == 0
    assert "not run: only bubblewrap" in done.stdout
    assert "1 not run; isolation plain" in done.stdout


@pytest.mark.skipif(bubblewrap_problem() is not None, reason="bubblewrap does not work here")
def test_under_bubblewrap_it_is_run(few):
    few([NETWORK])
    assert "0 not run; isolation bubblewrap" in run().stdout


def test_the_documents_say_how_many_cases_there_are():
    docs = Path(__file__).parent.parent
    on_cpu, on_gpu = (len(CHEATS), len(ODD)), (len(CUDA_CHEATS), len(CUDA_ODD))
    page = (docs / "docs/how-to/check-the-judge.md").read_text()
    assert f"sends {on_cpu[0]} kernels that cheat" in page and f"and {on_cpu[1]} honest kernels" in page
    assert f"it is {on_gpu[0]} cheats\nand {on_gpu[1]} odd ones" in page
    verdict = (docs / "docs/concepts/verdict.md").read_text()
    assert f"{on_cpu[0]} that must be refused, {on_cpu[1]} odd but honest kernels" in verdict
    changes = (docs / "CHANGELOG.md").read_text()
    assert f"{on_cpu[0]} cheats, their honest twins and {on_cpu[1]} odd kernels (on a GPU {on_gpu[0]} and" in changes
