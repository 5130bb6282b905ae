"""`kill -9` of a run at random moments: no process stays, no shared memory, and the run's folder is whole."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pygit2
import pytest

from autokernel.api.run import Run
from autokernel.loop.folder import RunFolder

BEGINNINGS, LATEST = 16, 5.0  # fresh runs, killed within seconds of their start: imports, capture, profile, baselines
AMONG = 4  # kills of one run among its experiments: twenty in all
GONE_IN = 6.0  # seconds in which every process of a killed run must have ended
PR_SET_CHILD_SUBREAPER = 36
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, x):
        return nn.functional.rms_norm(x, (256,), self.weight) * torch.sigmoid(x)

def get_inputs():
    return [torch.randn(512, 256)]
"""
COMMAND = "import sys; from autokernel.cli.main import run; sys.exit(run())"


@pytest.fixture(scope="module", autouse=True)
def adopts_orphans():
    """What a killed parent leaves becomes a child of this process, and can be seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children():
    """Living children of this process: (pid, name)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, parent = fields[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found[int(entry.name)] = fields[0].partition("(")[2]
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def started(model, path, *words):
    command = [sys.executable, "-c", COMMAND, *words, "--budget", "300s", "-q"]
    if words[0] == "optimize":
        command += ["--device", "cpu", "--out", str(path)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def shared_memory():
    return {entry.name for entry in Path("/dev/shm").iterdir()} if Path("/dev/shm").exists() else set()


def whole(path):
    """What is on disk can be read and belongs together; the number of finished experiments."""
    if not (path / "run.toml").exists():
        assert not path.exists(), "a run's folder appears whole or not at all"
        return None
    folder = RunFolder.open(path)
    try:
        trials = folder.trials
        assert [trial.experiment for trial in trials] == sorted(trial.experiment for trial in trials)
        repository = pygit2.Repository(str(path))
        for trial in trials:
            assert trial.commit in repository, "every experiment's source is in git"
            assert (path / "verdicts" / f"{trial.experiment}.json").exists()
        return len(trials)
    finally:
        folder.close()


class Kills:
    """Kills, each followed by a look at what stayed."""

    def __init__(self):
        self.before, self.shared, self.draw = children(), shared_memory(), random.Random()

    def kill(self, process, path):
        assert process.poll() is None, f"it ended by itself with status {process.returncode}"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        until = time.monotonic() + GONE_IN
        while set(children()) - set(self.before) and time.monotonic() < until:
            time.sleep(0.05)
        reap()
        assert {pid: name for pid, name in children().items() if pid not in self.before} == {}
        assert shared_memory() <= self.shared
        return whole(path)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def test_a_run_killed_in_its_first_seconds_leaves_no_process_no_shared_memory_and_a_whole_folder_or_none(
    tmp_path, model
):
    kills = Kills()
    for number in range(BEGINNINGS):
        path = tmp_path / f"run-{number}"
        process = started(model, path, "optimize", str(model))
        time.sleep(LATEST * (number + kills.draw.random()) / BEGINNINGS)
        kills.kill(process, path)


def test_a_run_killed_again_and_again_among_its_experiments_loses_none_that_was_finished_and_goes_on(tmp_path, model):
    kills, path = Kills(), tmp_path / "run"
    counts = [0]
    for number in range(AMONG):
        words = ("resume", str(path)) if number else ("optimize", str(model))
        process = started(model, path, *words)
        until = time.monotonic() + 90
        while len(lines(path)) <= counts[-1] and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(kills.draw.uniform(0.0, 0.7))  # experiments take about as long: any moment of one
        counts.append(kills.kill(process, path))
    assert counts == sorted(set(counts)), "each went on where the last was killed"
    assert Run.load(path).view().trials


def lines(path):
    table = path / "results.tsv"
    return table.read_text().splitlines()[1:] if table.exists() else []
