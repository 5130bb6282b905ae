"""kill -9 a real writer at random moments: the journal stays whole and at most the experiment in flight is lost."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from autokernel.loop.folder import RunFolder
from autokernel.records import Decision
from autokernel.testing.paper import paper_run

WRITER = Path(__file__).with_name("killed_writer.py")
KILLS = 20


def test_twenty_kills_at_random_moments_lose_at_most_the_experiment_in_flight(tmp_path):
    seed = int(os.environ.get("AUTOKERNEL_TEST_SEED", time.time_ns() % 2**32))
    sys.stdout.write(f"seed {seed}: repeat with AUTOKERNEL_TEST_SEED={seed}\n")
    moments = random.Random(seed)
    run = tmp_path / "run"
    paper_run(run, {"norm": 0.3, "gelu": 0.1}).close()
    seen = 0
    for _ in range(KILLS):
        killed_after(run, moments.uniform(0.0, 0.25))
        before = len(lines(run))
        with RunFolder.open(run, writable=True) as folder:
            assert len(folder.journal.recovery.lost) <= 1
            check(folder)
            assert len(folder.trials) >= before  # whole lines are never lost
            assert before >= seen
            seen = len(folder.trials)
    assert seen >= 5  # the kills fell among experiments, not before the first
    subprocess.run(["git", "-C", str(run), "fsck", "--strict"], check=True, capture_output=True)


def killed_after(run, seconds):
    process = subprocess.Popen([sys.executable, str(WRITER), str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    process.kill()
    process.wait()
    process.stdout.close()


def lines(run):
    text = (run / "results.tsv").read_text()
    return text[: text.rfind("\n") + 1].splitlines()[1:]


def check(folder):
    """Everything that the journal promises, whatever came before."""
    trials, repository = folder.trials, folder.journal.repository
    assert [trial.experiment for trial in trials] == sorted({trial.experiment for trial in trials})
    assert repository.refs("pending") == {}
    reverted = repository.refs("reverted")
    for trial in trials[-20:]:
        folder.journal.verdict(trial.experiment)
        assert folder.journal.source(trial.experiment).startswith("# us=")
        if trial.decision is Decision.kept:
            assert repository.contains(trial.commit)
        else:
            assert reverted[trial.experiment] == trial.commit
    for task in folder.task_ids():
        kept = [trial for trial in trials if trial.task == task and trial.decision is Decision.kept]
        expected = folder.journal.source(kept[-1].experiment) if kept else None
        file = folder.kernel_file(task)
        assert folder.journal.incumbent(task) == expected
        assert (file.read_text() if file.exists() else None) == expected
