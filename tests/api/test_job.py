"""What a job refuses before it does any work, and what a resumed one goes on with."""

import os
import signal

import pytest

from autokernel import api
from autokernel.api import job
from autokernel.errors import BadSetting, DeviceUnavailable, NoCompiler, NotARun, TargetNotFound, UnknownName
from autokernel.loop.folder import RunFolder
from autokernel.testing.paper import paper_run
from autokernel.workload import Workload


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    for name in ("CXX", "AUTOKERNEL_CXX", "AUTOKERNEL_ISOLATION", "AUTOKERNEL_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AUTOKERNEL_CONFIG", str(tmp_path / "none.toml"))


def never(*arguments):
    raise AssertionError("no work was to be done")


def optimize(tmp_path, **options):
    wanted = api.Options(**({"out": tmp_path / "run", "isolation": "plain"} | options))
    return job.optimize_workload(Workload("toy", never, (), "python"), wanted, lambda line: None)


def test_no_compiler_is_told_before_anything_is_profiled_or_made(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(NoCompiler, match="/nowhere/g"):
        optimize(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="file is not a folder"):
        optimize(tmp_path, out=tmp_path / "file" / "run")


@pytest.mark.parametrize("device", ["cpu:foo", "cpu:", "tpu"])
def test_a_device_that_is_none_is_named(tmp_path, device):
    with pytest.raises(DeviceUnavailable, match=device):
        optimize(tmp_path, device=device)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("replay", BadSetting, "replay:FOLDER"),
        ("replay:/nowhere", TargetNotFound, "/nowhere"),
        (":X", UnknownName, ":X"),
        ("nobody", UnknownName, "Known: search"),
        ("pathlib:PurePath", BadSetting, r"has no propose\(\)"),
        ("autokernel.propose.replay:ReplayProposer", BadSetting, "made without arguments"),
    ],
)
def test_an_author_that_can_not_write_is_refused_before_the_run_exists(tmp_path, name, error, words):
    with pytest.raises(error, match=words):
        optimize(tmp_path, proposer=name)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_replayed_from_wherever_the_run_is_resumed(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    monkeypatch.chdir(tmp_path)
    assert job.author("replay:kernels").folder.samefile(tmp_path / "kernels")
    config = job._config(Workload("toy", never, (), "python"), api.Options(proposer="replay:kernels"))
    assert config.proposer == f"replay:{tmp_path / 'kernels'}"


@pytest.mark.parametrize(("typed", "kept"), [("toy.py", "toy.py"), ("toy.py:make", "toy.py:make")])
def test_the_target_is_kept_as_an_absolute_path(tmp_path, monkeypatch, typed, kept):
    (tmp_path / "toy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    workload = Workload("toy", never, (), typed, path=tmp_path / "toy.py")
    assert job._config(workload, api.Options()).target == str(tmp_path / kept)


def test_options_win_over_settings_which_fill_what_was_not_asked_for(monkeypatch):
    monkeypatch.setenv("AUTOKERNEL_THREADS", "3")
    monkeypatch.setenv("AUTOKERNEL_ISOLATION", "plain")
    assert (api.Options().settled().threads, api.Options().settled().isolation) == (3, "plain")
    asked = api.Options(threads=1, isolation="bubblewrap", device="cpu")
    assert asked.settled() == asked


@pytest.mark.parametrize(("asked", "found"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_a_named_device_is_the_one_that_is_used(asked, found):
    assert api.Options(device=asked).settled().device == found


@pytest.mark.parametrize("call", [api.resume, api.verify_run])
def test_a_path_that_is_no_run_is_told_as_such(tmp_path, call):
    with pytest.raises(NotARun):
        call(tmp_path, never)


class Quiet:
    """An author with nothing to say; `signalled` sends this process a signal when it is first asked."""

    name = "quiet"
    signalled = False

    def propose(self, brief, evaluate):
        return None

    def observe(self, task, trial):
        raise AssertionError("it proposed nothing")

    def outlook(self, brief):
        if Quiet.signalled:
            os.kill(os.getpid(), signal.SIGINT)
        return 0.0


@pytest.mark.parametrize("signalled", [False, True])
def test_a_resumed_run_of_objects_says_that_it_is_not_proved_or_that_it_was_stopped(tmp_path, monkeypatch, signalled):
    monkeypatch.setattr(Quiet, "signalled", signalled)
    monkeypatch.setattr(job, "author", lambda name: Quiet())
    with paper_run(tmp_path / "run", {"norm": 0.3}, isolation="plain") as folder:
        manifest = folder.manifest
        config = folder.config.model_copy(update={"target": "python"})
        (folder.path / "run.toml").write_text(manifest.model_copy(update={"config": config}).toml())
    monkeypatch.setattr("autokernel.task.folder.load", lambda path: paper_task_of(path))
    lines = []
    done = job.resume_run(tmp_path / "run", lines.append, budget_seconds=60.0, experiments=None)
    assert done.interrupted is signalled
    assert any(line.startswith("not proved: ") for line in lines) is not signalled


def test_the_budget_of_experiments_is_the_whole_runs(tmp_path, monkeypatch):
    budgets = []
    monkeypatch.setattr(job, "author", lambda name: Quiet())
    monkeypatch.setattr(job, "_search", lambda folder, who, seeds, budget, say: budgets.append(budget) or True)
    monkeypatch.setattr(job, "_same_model", lambda folder, say: None)
    paper_run(tmp_path / "run", {"norm": 0.3}, isolation="plain", experiments=5).close()
    monkeypatch.setattr(RunFolder, "trials", property(lambda folder: (None,) * 3))
    monkeypatch.setattr(job, "finish", lambda folder, say: None)
    for asked in (None, 4):
        job.resume_run(tmp_path / "run", lambda line: None, budget_seconds=1.0, experiments=asked)
    assert [budget.experiments for budget in budgets] == [2, 4]


def test_a_picture_that_can_not_be_written_is_said_and_ends_nothing(tmp_path):
    lines = []
    with paper_run(tmp_path / "run", {"norm": 0.3}) as folder:
        (folder.path / "progress.png").mkdir()
        job.finish(folder, lines.append)
        assert (folder.path / "use.py").exists()
        assert not list(folder.path.glob(".progress*"))
    assert lines == [f"{folder.path / 'progress.png'} was not drawn: Is a directory."]


def paper_task_of(path):
    from autokernel.testing.paper import loaded

    return loaded(RunFolder.open(path.parent.parent))[path.name]
