import pytest

from autokernel.errors import KernelInvalid, NoSuchExperiment, NoSuchTask, RunLocked
from autokernel.loop.folder import RunFolder
from autokernel.loop.show import show
from autokernel.loop.submit import submit
from autokernel.records import Decision
from autokernel.testing.authors import RecordedDevice, kernel
from autokernel.testing.paper import loaded, paper_run

NORM = "01-norm"


@pytest.fixture
def path(tmp_path):
    paper_run(tmp_path / "run", {"norm": 0.3, "gelu": 0.1}).close()
    return tmp_path / "run"


def submitted(path, source, task="1", file=None, **options):
    file = file or path.parent / "draft.py"
    file.write_text(source)
    device = RecordedDevice({NORM: 100.0}, {NORM: 60.0})
    return submit(
        path, task, file, executor=device, load=lambda where: loaded(RunFolder.open(path))[where.name], **options
    )


def test_a_submitted_kernel_is_judged_committed_and_kept(path):
    trial, verdict = submitted(path, kernel(50.0), description="fewer passes")
    assert trial.decision is Decision.kept
    assert (trial.proposer, trial.description) == ("submit", "fewer passes")
    assert verdict.wins
    assert (path / "tasks" / NORM / "kernel.py").read_text() == kernel(50.0)


def test_each_submitted_kernel_has_seeds_of_its_own_committed_to_before_it_is_judged(path):
    import subprocess

    for us in (50.0, 40.0):
        submitted(path, kernel(us))
    command = ["git", "-C", str(path), "log", "-2", "--format=%(trailers:key=Seeds,valueonly,separator=)"]
    seeds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(set(seeds)) == 2
    assert all(len(commitment) == 64 for commitment in seeds)


def test_a_kernel_edited_in_place_is_what_gets_judged(path):
    submitted(path, kernel(50.0))
    place = path / "tasks" / NORM / "kernel.py"
    trial, _ = submitted(path, kernel(55.0), file=place)
    assert trial.decision is Decision.reverted
    assert show(path, 2).source == kernel(55.0)
    assert place.read_text() == kernel(50.0)


def test_show_gives_verdict_source_and_what_changed(path):
    submitted(path, kernel(50.0))
    submitted(path, kernel(40.0))
    shown = show(path, 2)
    assert shown.trial.experiment == 2
    assert shown.verdict.task == NORM
    assert "-# us=50.0" in shown.diff
    assert "+# us=40.0" in shown.diff
    assert shown.diff.count("diff --git") == 1
    with pytest.raises(NoSuchExperiment, match="it has 1–2"):
        show(path, 3)


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def launch(:\n", "not Python"),
        ('LANGUAGE = "cpp"\n', "no function `launch`"),
        ("def launch(x, out):\n    pass\n", "no line `LANGUAGE"),
    ],
)
def test_what_is_no_kernel_file_is_refused_without_an_experiment(path, source, detail):
    with pytest.raises(KernelInvalid, match=detail):
        submitted(path, source)
    assert RunFolder.open(path).trials == ()


def test_a_missing_kernel_file_a_missing_task_and_a_held_run_are_named(path):
    with pytest.raises(KernelInvalid, match="No such file"):
        submit(path, "1", path / "nowhere.py")
    with pytest.raises(NoSuchTask):
        submitted(path, kernel(50.0), task="9")
    with RunFolder.open(path, writable=True), pytest.raises(RunLocked):
        submitted(path, kernel(50.0))
