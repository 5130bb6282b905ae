"""Faults of a GPU: after each, the next verdict is what it was, no process stays, and no device memory."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from autokernel.judge import Opponent, Request
from autokernel.judge.bench import load_reference, open_sandbox
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Outcome, Reason

pytestmark = pytest.mark.gpu

REQUEST = Request(level="correctness", deadline_seconds=8.0)
EAGER = Opponent("eager")
SLACK = 64 << 20  # device memory: what the driver keeps for itself changes by some megabytes
PR_SET_CHILD_SUBREAPER = 36
REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(512, 1000, dtype=torch.bfloat16)]
"""
KERNEL = '''"""Softmax over rows."""
import torch
import triton
import triton.language as tl

LANGUAGE = "triton"


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    value = value / tl.sum(value, 0)
    tl.store(out + row * columns + column, value.to(tl.bfloat16), mask=column < columns)


def launch(x, out):
    x = x.contiguous()
    softmax[(x.shape[0],)](x, out, x.shape[1], triton.next_power_of_2(x.shape[1]), num_warps=4)
'''
# a loop without effects would be taken out by the compiler
WAITS = "    while tl.atomic_add(out, 0.0) != 12345.0:\n        pass\n"
ENDLESS = KERNEL.replace("    value = tl.exp(value", WAITS + "    value = tl.exp(value")
TAKES = "    torch.empty(1 << 45, dtype=torch.uint8, device=x.device)\n"
FAULTS = {
    "an illegal access": (KERNEL.replace("tl.store(out + row", "tl.store(out + 1000000000000 + row"), None),
    "an endless kernel": (ENDLESS, Reason.timeout),
    "out of memory": (KERNEL.replace("    softmax[", TAKES + "    softmax["), Reason.out_of_memory),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "softmax.py"
    path.write_text(REFERENCE)
    with open_sandbox(device="cuda:0") as sandbox:
        sandbox.settle_transport()
        yield Judge(load_reference(path, "cuda:0"), sandbox, seeds=Seeds.fresh())


def honest(judge):
    verdict = judge.verdict(KERNEL, EAGER, REQUEST)
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    return verdict.stage, [(one.name, one.status) for one in verdict.stages]


def device_memory_in_use():
    """Bytes, of all processes together."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def settled(before, seconds=20.0):
    """Device memory once it is what it was: a killed process's is given back by the driver a moment later."""
    until = time.monotonic() + seconds
    while device_memory_in_use() > before + SLACK and time.monotonic() < until:
        time.sleep(0.2)
    return device_memory_in_use()


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault_the_next_verdict_is_what_it_was_and_no_memory_stays(judge, name):
    source, reason = FAULTS[name]
    before, held = honest(judge), device_memory_in_use()
    verdict = judge.verdict(source, EAGER, REQUEST)
    assert verdict.verdict is Outcome.rejected, verdict.explanation
    assert verdict.reason in ((reason,) if reason else (Reason.exception, Reason.died)), verdict.explanation
    assert honest(judge) == before
    assert settled(held) <= held + SLACK
    assert torch.ones(3, device="cuda").sum().item() == 3, "nor is this process's context hurt"


@pytest.mark.parametrize("victim", ["child", "zygote"])
def test_what_is_killed_from_outside_in_the_middle_of_a_call_costs_one_verdict(judge, victim):
    before, held = honest(judge), device_memory_in_use()
    sandbox = judge.sandbox
    seen = []

    def kill():
        until = time.monotonic() + 60
        while not seen and time.monotonic() < until:
            child = sandbox._child
            if child is not None and child._base_memory and child.kernel.source == ENDLESS:
                time.sleep(0.5)
                seen.append(child.pid if victim == "child" else sandbox._zygote_pid)
                os.kill(seen[0], signal.SIGKILL)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    verdict = judge.verdict(ENDLESS, EAGER, REQUEST)
    killer.join()
    assert seen, "there was a process to kill"
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.died), verdict.explanation
    assert honest(judge) == before
    assert settled(held) <= held + SLACK


PARENT = """
import sys
from autokernel.judge import Opponent, Request
from autokernel.judge.bench import load_reference, open_sandbox
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds

loaded, source = load_reference(__import__("pathlib").Path(sys.argv[1]), "cuda:0"), open(sys.argv[2]).read()
with open_sandbox(device="cuda:0") as sandbox:
    sandbox.settle_transport()
    judge = Judge(loaded, sandbox, seeds=Seeds.fresh())
    print("begun", flush=True)
    while True:
        judge.verdict(source, Opponent("eager"), Request(drop_slow=False, sanitize=False))
"""
KILLS = 5


@pytest.fixture
def adopts_orphans():
    """What a killed parent leaves becomes a child of this process, and can be seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children():
    """Living children of this process, by pid."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(entry.name))
    return found


def test_a_killed_parent_leaves_no_process_and_no_device_memory(tmp_path, adopts_orphans):
    reference, kernel = tmp_path / "softmax.py", tmp_path / "kernel.py"
    reference.write_text(REFERENCE)
    kernel.write_text(KERNEL)
    held, before = device_memory_in_use(), children()
    for number in range(KILLS):
        command = [sys.executable, "-c", PARENT, str(reference), str(kernel)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            time.sleep(random.uniform(0.0, 6.0))
            assert process.poll() is None
            assert number or device_memory_in_use() > held + SLACK, "there was something to give back"
            os.kill(process.pid, signal.SIGKILL)
        until = time.monotonic() + 20
        while children() - before and time.monotonic() < until:
            time.sleep(0.05)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        assert children() - before == set()
        assert settled(held) <= held + SLACK
