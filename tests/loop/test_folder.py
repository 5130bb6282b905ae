import tomllib

import pytest

from autokernel.errors import (
    BrokenFile,
    NewerSchema,
    NoSuchTask,
    NotARun,
    RunExists,
    RunMismatch,
    TargetInvalid,
)
from autokernel.loop.folder import RunFolder
from autokernel.records import RunConfig
from autokernel.testing.paper import paper_profile, paper_run, paper_task, writer


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run"
    paper_run(path, {"norm": 0.3, "gelu": 0.1}, budget_seconds=60.0).close()
    return path


def test_a_new_run_holds_what_the_design_says(path):
    assert {entry.name for entry in path.iterdir()} == {
        ".git",
        ".lock",
        "run.toml",
        "program.md",
        "profile.json",
        "tasks",
        "results.tsv",
        "verdicts",
    }
    assert [entry.name for entry in path.parent.iterdir()] == ["run"]
    data = tomllib.loads((path / "run.toml").read_text())
    assert data["schema"] == 1
    assert data["config"]["budget_seconds"] == 60.0
    assert data["versions"] == {"autokernel": "test"}
    assert "01-norm" in (path / "program.md").read_text()


def test_configuration_reads_back_equal(path):
    folder = RunFolder.open(path)
    assert folder.config == RunConfig(target="paper.py", name="paper", proposer="scripted", budget_seconds=60.0)
    assert folder.task_ids() == ("01-norm", "02-gelu")


def test_an_error_while_making_a_run_leaves_nothing(tmp_path):
    def fill(directory):
        (directory / "01-norm").mkdir()
        raise TargetInvalid(target="x.py", detail="on purpose")

    with pytest.raises(TargetInvalid):
        RunFolder.create(tmp_path / "run", RunConfig(target="x.py", name="x"), fill)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_taken(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    with pytest.raises(RunExists):
        paper_run(tmp_path / "run", {"norm": 0.3})
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    paper_run(tmp_path / "run", {"norm": 0.3}).close()
    assert RunFolder.open(tmp_path / "run").task_ids() == ("01-norm",)


def test_what_is_not_a_run_is_named(tmp_path, path):
    with pytest.raises(NotARun, match="no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotARun, match=r"no run\.toml"):
        RunFolder.open(tmp_path / "empty")
    (path / "results.tsv").unlink()
    with pytest.raises(NotARun, match=r"results\.tsv"):
        RunFolder.open(path)


def test_a_run_of_a_newer_version_is_refused_before_anything_is_touched(path):
    text = (path / "run.toml").read_text()
    (path / "run.toml").write_text(text.replace("schema = 1", "schema = 2", 1))
    torn = (path / "results.tsv").read_text() + "torn"
    (path / "results.tsv").write_text(torn)
    with pytest.raises(NewerSchema, match="schema 2"):
        RunFolder.open(path, writable=True)
    assert (path / "results.tsv").read_text() == torn


def test_a_damaged_run_toml_is_named(path):
    (path / "run.toml").write_text("schema = 1\n[config\n")
    with pytest.raises(BrokenFile, match=r"run\.toml"):
        RunFolder.open(path)


def _keys(*tasks):
    return {(task.fingerprint, task.shape_key) for task in tasks}


def test_another_model_is_refused_with_what_differs(path):
    folder = RunFolder.open(path)
    folder.check_model(_keys(paper_task(7, "gelu"), paper_task(8, "norm"), paper_task(9, "rope")))
    with pytest.raises(RunMismatch, match="of its 2 regions 1 occur in this model, and 1 of this"):
        folder.check_model(_keys(paper_task(1, "norm"), paper_task(2, "softmax")))


def test_tasks_are_found_by_number_name_or_path(path):
    folder = RunFolder.open(path)
    for name in ("2", "02", "02-gelu", str(path / "tasks" / "02-gelu") + "/"):
        assert folder.task_id(name) == "02-gelu"
    with pytest.raises(NoSuchTask, match="01-norm, 02-gelu"):
        folder.task_id("3")
    with pytest.raises(NoSuchTask):
        folder.task_id("0")


def test_a_resumed_session_is_noted_and_committed(path):
    with RunFolder.open(path, writable=True) as folder:
        folder.add_session("abc", folder.config.model_copy(update={"budget_seconds": 90.0}))
    again = RunFolder.open(path)
    assert again.manifest.seeds.commitments == ("abc",)
    assert again.config.budget_seconds == 90.0
    committed = again.journal.repository.text(again.journal.repository.head(), "run.toml")
    assert committed == (path / "run.toml").read_text()


def test_a_task_folder_that_was_renamed_is_refused(tmp_path):
    task = paper_task(1, "norm")
    fill = writer({"05-other": task}, paper_profile({}, {}))
    with pytest.raises(BrokenFile, match="its id is 01-norm"):
        RunFolder.create(tmp_path / "run", RunConfig(target="x", name="x"), fill)
