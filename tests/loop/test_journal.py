import shutil
import subprocess

import pytest

from autokernel.errors import NoSuchExperiment
from autokernel.loop.folder import RunFolder
from autokernel.loop.journal import Journal
from autokernel.records import Decision, Outcome, Reason, Stage, Trial, Verdict
from autokernel.testing.paper import paper_run

TASK = "01-norm"


@pytest.fixture
def run(tmp_path):
    folder = paper_run(tmp_path / "run", {"norm": 0.3, "gelu": 0.1})
    yield folder
    folder.close()


def git(path, *arguments):
    done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr
    return done.stdout


def a_trial(flight, decision):
    return Trial(
        experiment=flight.number,
        tag="norm",
        kernel_type="row",
        correctness="PASS",
        task=flight.task,
        decision=decision,
        reason="as the test says",
        commit=flight.commit,
        proposer="test",
        seconds=0.1,
        finished_at="2026-01-01T00:00:00+00:00",
    )


def a_verdict(task=TASK):
    return Verdict(
        task=task,
        kernel_sha256="0",
        device="cpu",
        isolation="plain",
        verdict=Outcome.accepted,
        stage=Stage.confirm,
        reason=Reason.ok,
    )


def do(run, source, decision, task=TASK):
    flight = run.journal.begin(task, source, "an idea")
    run.journal.finish(flight, a_trial(flight, decision), a_verdict(task))
    return flight


def test_a_kept_experiment_moves_the_branch_and_shows_in_the_work_tree(run):
    before = run.journal.repository.head()
    flight = do(run, "kernel one\n", Decision.kept)
    assert run.journal.repository.head() == flight.commit
    assert run.journal.repository.parent(flight.commit) == before
    assert run.kernel_file(TASK).read_text() == "kernel one\n"
    assert run.journal.incumbent(TASK) == "kernel one\n"
    assert git(run.path, "show", "--name-only", "--format=", flight.commit).split() == [f"tasks/{TASK}/kernel.py"]


def test_a_reverted_experiment_leaves_the_branch_and_stays_reachable(run):
    do(run, "kernel one\n", Decision.kept)
    head = run.journal.repository.head()
    flight = do(run, "kernel two\n", Decision.reverted)
    assert run.journal.repository.head() == head
    assert run.kernel_file(TASK).read_text() == "kernel one\n"
    assert run.journal.source(flight.number) == "kernel two\n"
    assert flight.commit[:7] in git(run.path, "log", "--all", "--oneline", "--abbrev=7")


def test_the_git_program_sees_a_clean_sound_repository(run):
    do(run, "one\n", Decision.kept)
    do(run, "two\n", Decision.reverted)
    do(run, "three\n", Decision.kept, task="02-gelu")
    assert git(run.path, "status", "--porcelain") == ""
    git(run.path, "fsck", "--strict")
    assert git(run.path, "rev-list", "--count", "main").strip() == "3"


def test_an_experiment_in_flight_is_lost_with_its_source_kept(run):
    flight = run.journal.begin(TASK, "in flight\n")
    run.close()
    with RunFolder.open(run.path, writable=True) as again:
        assert again.journal.recovery.lost == (flight.number,)
        assert again.journal.repository.text(flight.commit, f"tasks/{TASK}/kernel.py") == "in flight\n"
        assert again.journal.repository.refs("pending") == {}
        assert again.journal.begin(TASK, "next\n").number == flight.number + 1


@pytest.mark.parametrize("decision", list(Decision))
def test_a_line_whose_branch_did_not_move_is_completed(run, monkeypatch, decision):
    def killed(*arguments):
        raise KeyboardInterrupt

    flight = run.journal.begin(TASK, "kernel\n")
    monkeypatch.setattr(Journal, "_settle", killed)
    with pytest.raises(KeyboardInterrupt):
        run.journal.finish(flight, a_trial(flight, decision), a_verdict())
    monkeypatch.undo()
    run.close()
    with RunFolder.open(run.path, writable=True) as again:
        assert again.journal.recovery.completed == (flight.number,)
        assert again.journal.recovery.lost == ()
        kept = decision is Decision.kept
        assert again.journal.incumbent(TASK) == ("kernel\n" if kept else None)
        assert again.kernel_file(TASK).exists() == kept
        assert again.journal.repository.refs("reverted") == ({} if kept else {flight.number: flight.commit})


def test_a_commit_made_by_hand_meanwhile_stays_on_the_branch(run):
    flight = run.journal.begin(TASK, "kernel\n")
    (run.path / "program.md").write_text("my own notes\n")
    git(run.path, "commit", "-q", "-am", "notes")
    mine = git(run.path, "rev-parse", "main").strip()
    run.journal.finish(flight, a_trial(flight, Decision.kept), a_verdict())
    assert run.journal.repository.contains(mine)
    assert run.journal.incumbent(TASK) == "kernel\n"
    assert (run.path / "program.md").read_text() == "my own notes\n"


def test_an_edit_of_kernel_py_is_saved_in_git_and_the_incumbent_restored(run):
    do(run, "incumbent\n", Decision.kept)
    run.kernel_file(TASK).write_text("edited in place\n")
    run.close()
    with RunFolder.open(run.path, writable=True) as again:
        assert again.kernel_file(TASK).read_text() == "incumbent\n"
        (ref,) = again.journal.recovery.saved_edits
        assert git(run.path, "show", f"{ref}:tasks/{TASK}/kernel.py") == "edited in place\n"


def test_a_stale_lock_of_git_itself_does_not_stop_a_resumed_run(run):
    run.close()
    (run.path / ".git" / "refs" / "heads" / "main.lock").touch()
    (run.path / ".git" / "index.lock").touch()
    with RunFolder.open(run.path, writable=True) as again:
        do(again, "kernel\n", Decision.kept)
        assert again.journal.incumbent(TASK) == "kernel\n"


def test_a_reader_beside_a_writer_sees_each_finished_experiment(run):
    reader = RunFolder.open(run.path)
    assert reader.trials == ()
    flight = do(run, "kernel\n", Decision.kept)
    assert [trial.experiment for trial in reader.trials] == [flight.number]
    assert reader.journal.verdict(flight.number) == a_verdict()


def test_an_experiment_that_is_not_there_is_named_with_those_that_are(run):
    for source in ("a\n", "b\n", "c\n"):
        do(run, source, Decision.reverted)
    with pytest.raises(NoSuchExperiment, match="no experiment 7; it has 1–3"):
        run.journal.verdict(7)


@pytest.mark.parametrize(
    "config",
    ["[user\nname =", "[commit]\n\tgpgsign = true\n[user]\n\tsigningkey = none\n", "[core]\n\tautocrlf = true\n", None],
    ids=["malformed", "signing", "autocrlf", "no home"],
)
def test_the_users_git_configuration_has_no_say(tmp_path, monkeypatch, config):
    home = tmp_path / "home"
    if config is not None:
        home.mkdir()
        (home / ".gitconfig").write_text(config)
    monkeypatch.setenv("HOME", str(home))
    import pygit2

    before = pygit2.settings.search_path[pygit2.enums.ConfigLevel.GLOBAL]
    pygit2.settings.search_path[pygit2.enums.ConfigLevel.GLOBAL] = str(home)
    try:
        with paper_run(tmp_path / "run", {"norm": 0.3}) as folder:
            do(folder, "line\nline\n", Decision.kept)
            assert folder.kernel_file(TASK).read_bytes() == b"line\nline\n"
        with RunFolder.open(tmp_path / "run", writable=True) as again:
            assert again.journal.incumbent(TASK) == "line\nline\n"
        assert pygit2.settings.search_path[pygit2.enums.ConfigLevel.GLOBAL] == str(home)
    finally:
        pygit2.settings.search_path[pygit2.enums.ConfigLevel.GLOBAL] = before


def test_a_run_inside_the_users_repository_never_touches_it(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with paper_run(tmp_path / "runs" / "one", {"norm": 0.3}) as folder:
        do(folder, "kernel\n", Decision.kept)
    assert git(tmp_path, "rev-list", "--all", "--count").strip() == "0"
    shutil.rmtree(tmp_path / "runs" / "one" / ".git")
    from autokernel.errors import NotARun

    with pytest.raises(NotARun):
        RunFolder.open(tmp_path / "runs" / "one", writable=True)
