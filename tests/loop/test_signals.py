"""Real signals to a real process that runs the loop."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autokernel.loop.folder import RunFolder
from autokernel.loop.signals import StopFlag, Stopped, caught
from autokernel.testing.paper import paper_run

CODE = """
import sys
from pathlib import Path
from autokernel.loop import Budget
from autokernel.loop.folder import RunFolder
from autokernel.loop.run import run_loop
from autokernel.testing.authors import RecordedDevice, ScriptedProposer, kernel
from autokernel.testing.paper import loaded

def say(line):
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

with RunFolder.open(Path(sys.argv[1]), writable=True) as folder:
    (name,) = folder.task_ids()
    device = RecordedDevice({name: 1e6}, {name: 9e5}, seconds=float(sys.argv[2]))
    author = ScriptedProposer({name: [kernel(1e5 + step) for step in range(1000)]}, outlooks={name: 0.1})
    result = run_loop(folder, loaded(folder), folder.profile(), author, device, budget=Budget(), say=say)
    say(f"interrupted by {result.interrupted}")
"""


@pytest.fixture
def path(tmp_path):
    paper_run(tmp_path / "run", {"norm": 0.3}).close()
    return tmp_path / "run"


def started(path, seconds, **options):
    command = [sys.executable, "-c", CODE, str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    assert "baseline 1/1" in process.stdout.readline()
    assert "the same against itself" in process.stdout.readline()
    assert "first experiment" in process.stdout.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_gives_up_the_experiment_in_flight_at_once_and_says_how_to_go_on(path, number):
    process = started(path, seconds=60)  # the judge would take a minute
    time.sleep(0.3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=15)
    assert process.returncode == 0
    assert f"autokernel resume {Path(os.path.relpath(path))}" in output or f"autokernel resume {path}" in output
    assert output.endswith(f"interrupted by {number.name}\n")
    with RunFolder.open(path, writable=True) as folder:
        assert folder.journal.recovery.lost == ()  # it was given up in good order
        assert list(folder.journal.repository.refs("lost")) == [1]


def test_a_signal_between_experiments_leaves_every_finished_one(path):
    process = started(path, seconds=0)
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=15)
    finished = [line for line in output.splitlines() if line.startswith("#")]
    assert output.endswith("interrupted by SIGINT\n")
    assert len(RunFolder.open(path).trials) == len(finished) > 0


def test_nohup_stays_in_force(path):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = started(path, seconds=0, preexec_fn=ignore)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=15)
    assert output.endswith("interrupted by SIGTERM\n")


def test_a_shielded_stretch_is_not_cut_in_two():
    stop, done = StopFlag(), []
    with caught(stop), pytest.raises(Stopped), stop.interruptible():  # noqa: SIM117 (what is left first matters)
        with stop.shielded():
            signal.raise_signal(signal.SIGTERM)
            done.append("whole")
            with stop.interruptible():
                done.append("never")
    assert done == ["whole"]
    assert stop.reason == "SIGTERM"


def test_the_second_signal_interrupts_even_a_shielded_stretch():
    stop = StopFlag()
    with caught(stop), stop.shielded():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_authors_except_exception_can_not_swallow_a_stop():
    stop = StopFlag()
    with caught(stop), pytest.raises(Stopped), stop.interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        except Exception:
            pytest.fail("swallowed")


def test_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with caught(StopFlag()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_no_handler_is_installed():
    entered = []

    def work():
        with caught(StopFlag()):
            entered.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [before]
