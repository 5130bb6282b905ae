"""The doctor on a machine with a GPU: every line tried for real, and no CUDA context in this process."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from autokernel.doctor import ipc
from autokernel.judge.isolation import shut_in

pytestmark = pytest.mark.gpu

PROGRAM = """
import json, time
begin = time.monotonic()
from autokernel.doctor import check_gpus
import dataclasses, torch
lines = [dataclasses.asdict(line) for line in check_gpus()]
print(json.dumps({"lines": lines, "context": torch.cuda.is_initialized(), "seconds": time.monotonic() - begin}))
"""


@pytest.fixture(scope="module")
def done():
    env = {**os.environ, "TRITON_INTERPRET": "1"}  # the probe compiles for the GPU all the same
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, env=env)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def lines(done):
    return {line["name"]: line for line in done["lines"]}


def test_the_process_itself_makes_no_cuda_context_and_is_done_in_time(done):
    assert done["context"] is False
    assert done["seconds"] < 60


def test_every_line_is_there_and_has_a_remedy_unless_it_is_ok(lines):
    assert {"gpu", "gpu driver", "gpu ipc", "triton", "gpu sandbox"} <= set(lines)
    for line in lines.values():
        assert bool(line["remedy"]) == (line["status"] != "ok"), line


def test_the_gpu_is_named_and_runs_a_kernel(lines):
    assert lines["gpu"]["status"] != "fail", lines["gpu"]
    assert torch.cuda.get_device_name(0) in lines["gpu"]["found"]


def test_triton_compiles_and_runs_here(lines):
    assert lines["triton"]["status"] == "ok", lines["triton"]


def test_the_driver_is_known_to_nvml(lines):
    assert lines["gpu driver"]["status"] == "ok", lines["gpu driver"]
    assert "MHz" in lines["gpu clocks"]["found"]


def test_ipc_says_the_same_twice_and_takes_seconds():
    begin = time.monotonic()
    first = ipc.probe()
    assert time.monotonic() - begin < 20
    assert (ipc.probe() is None) == (first is None)


def test_a_guest_that_never_comes_is_a_problem_and_not_a_success():
    assert ipc.probe(prefix=("true",)) == "in the other process: status 0 and no word"
    assert "status 1" in ipc.probe(prefix=("false",))


def test_a_guest_that_only_claims_to_have_written_is_found_out():
    assert ipc.probe(prefix=("sh", "-c", "echo ok")) == "what the other process wrote was not seen"


def test_the_sandbox_line_follows_what_bubblewrap_does(lines):
    if lines["gpu sandbox"]["status"] == "ok":
        assert ipc.probe(prefix=shut_in("cuda")) is None
    else:
        assert "bubblewrap" in lines["gpu sandbox"]["found"]
