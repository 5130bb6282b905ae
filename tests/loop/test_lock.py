import os
import subprocess
import sys

import pytest

from autokernel.errors import RunLocked, RunReadOnly
from autokernel.loop.folder import RunFolder
from autokernel.loop.lock import RunLock
from autokernel.testing.paper import paper_run


def test_the_second_to_open_is_told_who_holds_the_run(tmp_path):
    with paper_run(tmp_path / "run", {"norm": 0.3}), pytest.raises(RunLocked) as caught:
        RunFolder.open(tmp_path / "run", writable=True)
    message = str(caught.value)
    assert f"process {os.getpid()} on {os.uname().nodename}" in message
    assert "since 20" in message


def test_two_processes_at_once_and_one_gets_it(tmp_path):
    paper_run(tmp_path / "run", {"norm": 0.3}).close()
    code = (
        "import sys, time; from pathlib import Path; from autokernel.loop.folder import RunFolder\n"
        "from autokernel.errors import RunLocked\n"
        "try:\n    RunFolder.open(Path(sys.argv[1]), writable=True); print('got it', flush=True); sys.stdin.read()\n"
        "except RunLocked as error:\n    print(error, flush=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.stdout.readline() for process in both]
    for process in both:
        process.communicate()
    winner = said.index("got it\n")
    assert f"in use by process {both[winner].pid}" in said[1 - winner]


def test_closing_gives_the_run_free(tmp_path):
    paper_run(tmp_path / "run", {"norm": 0.3}).close()
    RunFolder.open(tmp_path / "run", writable=True).close()
    RunFolder.open(tmp_path / "run", writable=True).close()


def test_a_program_we_started_does_not_hold_the_lock_after_us(tmp_path):
    lock = RunLock(tmp_path)
    child = subprocess.Popen(["sleep", "30"])
    lock.release()
    RunLock(tmp_path).release()
    child.kill()
    child.wait()


def test_a_run_that_can_not_be_written_to_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RunReadOnly, match="can't be written to: Is a directory"):
        RunLock(tmp_path)
