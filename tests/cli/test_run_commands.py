"""`report` and `show` on a real run folder, through the command line."""

import json

import pytest
from typer.testing import CliRunner

from autokernel.cli.main import app
from autokernel.loop.folder import RunFolder
from autokernel.records import Decision, Outcome, Reason, Stage, Trial, Verdict
from autokernel.testing.paper import paper_run
from autokernel.viewing import owner, view_run

TASK = "01-norm"


def autokernel(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def add(folder, source, decision, speedup):
    flight = folder.journal.begin(TASK, source, "wider vectors")
    trial = Trial(
        experiment=flight.number,
        tag="norm",
        kernel_type="row",
        correctness="PASS",
        task=TASK,
        decision=decision,
        reason="as the test says",
        speedup_vs_incumbent=speedup,
        ci_low=speedup * 0.98,
        ci_high=speedup * 1.02,
        commit=flight.commit,
        proposer="test",
        seconds=0.1,
        finished_at="2026-01-01T00:00:00+00:00",
    )
    verdict = Verdict(
        task=TASK,
        kernel_sha256="0",
        device="cpu",
        isolation="plain",
        verdict=Outcome.accepted,
        stage=Stage.confirm,
        reason=Reason.ok,
    )
    folder.journal.finish(flight, trial, verdict)


@pytest.fixture
def path(tmp_path):
    with paper_run(tmp_path / "run", {"norm": 0.3, "gelu": 0.1}) as folder:
        add(folder, "first = 1\n", Decision.kept, 1.5)
        add(folder, "second = 2\n", Decision.reverted, 0.9)
        add(folder, "third = 3\n", Decision.kept, 1.2)
    return tmp_path / "run"


def test_report_sums_up_a_stopped_run_and_draws_its_picture(path):
    done = autokernel("report", path)
    assert done.exit_code == 0, done.stderr
    assert "3 experiments on 1 task, 3 right, 2 kept" in done.stdout
    assert "1.80×" in done.stdout
    assert f"    autokernel resume {path}\n" in done.stdout
    assert (path / "progress.png").read_bytes().startswith(b"\x89PNG")


def test_report_as_json_is_json_alone(path):
    done = autokernel("report", path, "--json")
    facts = json.loads(done.stdout)
    assert facts["result"] is None and facts["experiments"] == 3
    assert {line["task"]: line["kept"] for line in facts["tasks"]} == {TASK: 2, "02-gelu": 0}


def test_report_on_a_live_run_names_who_works_on_it(path):
    assert owner(path) is None
    with RunFolder.open(path, writable=True):
        assert "process" in owner(path)
        done = autokernel("report", path)
    assert done.exit_code == 0, done.stderr
    assert "The run goes on (process" in done.stdout
    assert owner(path) is None


def test_a_view_holds_the_verdicts_of_the_kept(path):
    view = view_run(path)
    assert sorted(view.verdicts) == [1, 3]
    assert [trial.decision for trial in view.trials] == ["kept", "reverted", "kept"]


def test_show_prints_what_an_experiment_changed_and_its_verdict(path):
    done = autokernel("show", path, 3)
    assert done.exit_code == 0, done.stderr
    assert "-first = 1" in done.stdout and "+third = 3" in done.stdout
    assert "Experiment 3 on 01-norm, by test: kept" in done.stdout
    assert "ACCEPTED" in done.stdout


def test_show_of_a_reverted_experiment_still_has_its_source(path):
    done = autokernel("show", path, 2)
    assert "+second = 2" in done.stdout and "reverted" in done.stdout


def test_show_of_an_experiment_that_never_was_is_the_users_to_fix(path):
    done = autokernel("show", path, 9)
    assert done.exit_code == 2
    assert "no experiment 9" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "resume", "verify"])
def test_a_folder_that_is_not_a_run_is_the_users_to_fix(command, tmp_path):
    done = autokernel(command, tmp_path)
    assert done.exit_code == 2, done.stderr
    assert "is not an autokernel run" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
