"""Candidates that go wrong, by accident or on purpose: each ends with its proper name, the next child unharmed."""

import os
import signal
import time

import pytest
import torch

from autokernel.judge import isolation
from autokernel.judge.buffers import BufferSet
from autokernel.judge.sandbox import ChildFailure, Kernel, Sandbox
from autokernel.records import Reason, TensorSpec

DEADLINE = 60.0
SIZE = 4096
OUT = TensorSpec(name="out", dtype="float32", shape=(SIZE,), stride=(1,))
DOUBLE = "import torch\ndef launch(x, out): torch.mul(x, 2, out=out)\n"
KINDS = ["plain", pytest.param("bubblewrap", marks=pytest.mark.skipif(
    isolation.bubblewrap_problem() is not None, reason="bubblewrap does not work here"))]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request):
    with Sandbox(isolation=request.param, threads=1, memory_limit_bytes=512 << 20) as made:
        yield made


@pytest.fixture(scope="module")
def best():
    """For what does not depend on the isolation."""
    with Sandbox(threads=1, memory_limit_bytes=512 << 20) as made:
        yield made


def fresh_sets(count=1):
    return [BufferSet.create([torch.randn(SIZE)], [OUT]) for _ in range(count)]


def run(sandbox, source, deadline=DEADLINE, sets=None):
    """One call over one set."""
    sets = sets or fresh_sets()
    child = sandbox.spawn(Kernel("source", source), sets, deadline=deadline)
    child.call(0, deadline)
    return child, sets


def failure(sandbox, source, deadline=DEADLINE):
    with pytest.raises(ChildFailure) as caught:
        run(sandbox, source, deadline)
    _, sets = run(sandbox, DOUBLE)
    assert torch.equal(sets[0].outputs[0], sets[0].inputs[0] * 2), "the next child is unharmed"
    return caught.value


FAULTS = {
    "exit 0 on import": ("import os\nos._exit(0)", Reason.died, "status 0"),
    "exit 0 in launch": ("import os\ndef launch(x, out): os._exit(0)", Reason.died, "status 0"),
    "system exit": ("import sys\ndef launch(x, out): sys.exit(0)", Reason.exception, "SystemExit"),
    "kills itself": ("import os\ndef launch(x, out): os.kill(os.getpid(), 9)", Reason.died, "SIGKILL"),
    "kills itself by a signal without a name": (
        "import os\ndef launch(x, out): os.kill(os.getpid(), 40)", Reason.died, "signal 40",
    ),
    "crashes": ("import ctypes\ndef launch(x, out): ctypes.string_at(0)", Reason.died, "SIGSEGV"),
    "aborts": ("import os\ndef launch(x, out): os.abort()", Reason.died, "SIGABRT"),
    "raises": ("def launch(x, out): raise KeyError('no such tile')", Reason.exception, "no such tile"),
    "raises on import": ("import no_such_module", Reason.exception, "no_such_module"),
    "no launch": ("x = 1", Reason.bad_source, "launch"),
    "no Python": ("def launch(x, out:", Reason.bad_source, "SyntaxError"),
    "wrong number of arguments": ("def launch(x): pass", Reason.exception, "launch"),
    "an exception that can't be printed": (
        "class E(Exception):\n def __str__(self): raise self\ndef launch(x, out): raise E", Reason.exception, "E"),
    "an exception of a million characters": (
        "def launch(x, out): raise ValueError('y' * 10**6)", Reason.exception, "y" * 100),
    "too much memory": ("import torch\ndef launch(x, out): torch.ones(1 << 28)", Reason.out_of_memory, "memory"),
    "too much memory, shared": (
        "import mmap\ndef launch(x, out): mmap.mmap(-1, 64 << 30)", Reason.out_of_memory, "memory"),
    "closes its channel": (
        "import os, time\ndef launch(x, out):\n os.closerange(3, 300)\n time.sleep(600)", Reason.protocol, "channel"),
    "too many files open, then nothing": (
        "import os\ndef launch(x, out):\n while True: os.dup(0)", Reason.exception, "Too many open files"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_name(best, name):
    source, reason, words = FAULTS[name]
    found = failure(best, source)
    assert found.reason is reason and words in found.detail
    assert len(found.detail) <= 4096


ENDLESS = {
    "python": "def launch(x, out):\n    while True: pass",
    "native, signals blocked": """
import ctypes, signal
def launch(x, out):
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).sleep(600)
""",
    "stops itself": "import os, signal\ndef launch(x, out): os.kill(os.getpid(), signal.SIGSTOP)",
    "on import": "while True: pass",
    "fork bomb": """
import os, time
def launch(x, out):
    made = 0
    for _ in range(7):  # 2**7 processes, all of which go on forking slowly
        os.fork()
    while True:
        time.sleep(0.05)
        if os.fork() == 0:
            time.sleep(0.2)
            os._exit(0)
""",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_ended(sandbox, name):
    begin = time.monotonic()
    found = failure(sandbox, ENDLESS[name], deadline=1.5)
    assert found.reason is Reason.timeout
    assert time.monotonic() - begin < 30
    assert sandbox._alive()


FORGE = """
import os, struct
def launch(x, out):
    for fd in range(256):
        try:
            os.write(fd, FORGED)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "forged", ["b'accepted\\n' * 100", "b'\\0' * 2080", "b'AKr1' + bytes(2076)", "b''", "b'\\x03'"]
)
def test_a_verdict_forged_on_every_descriptor_is_out_of_protocol(best, forged):
    """An empty packet reads as an end; the child is then found running, which is out of protocol too."""
    found = failure(best, FORGE.replace("FORGED", forged) + "    import time; time.sleep(600)\n", deadline=3.0)
    assert found.reason in (Reason.protocol, Reason.timeout)
    if forged != "b''":
        assert found.reason is Reason.protocol


STOLEN = """
import os, socket, sys, time
from autokernel.judge.protocol import Reply, Status

def channel_and_nonce():
    frame = sys._getframe()
    while "request" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["channel"], frame.f_locals["request"].nonce
"""


def test_a_well_formed_done_before_the_work_shows_an_unwritten_output(best):
    source = (
        STOLEN
        + """
def launch(x, out):
    channel, nonce = channel_and_nonce()
    channel.send(Reply(Status.done, nonce).encode())
    time.sleep(0.3)
    out.copy_(x * 2)
    time.sleep(600)
"""
    )
    _, sets = run(best, source)
    assert sets[0].unwritten()[0].all()


def test_a_done_twice_is_out_of_protocol(best):
    source = (
        STOLEN
        + """
def launch(x, out):
    channel, nonce = channel_and_nonce()
    channel.send(Reply(Status.done, nonce).encode())
    channel.send(Reply(Status.done, nonce).encode())
    time.sleep(600)
"""
    )
    child, _ = run_until_failure(best, source)
    with pytest.raises(ChildFailure) as caught:  # the second one, if the child was stopped before it could be sent
        child.call(0, DEADLINE)
    assert caught.value.reason is Reason.protocol


def run_until_failure(sandbox, source):
    """A child after one call, which may have failed already; then a second call fails for the same reason."""
    sets = fresh_sets()
    child = sandbox.spawn(Kernel("source", source), sets, deadline=DEADLINE)
    try:
        child.call(0, DEADLINE)
    except ChildFailure as failed:
        assert failed.reason is Reason.protocol
        child = Failed(failed)
    return child, sets


class Failed:
    def __init__(self, failure):
        self.failure = failure

    def call(self, index, deadline):
        raise self.failure


def test_a_done_said_by_another_process_is_out_of_protocol(sandbox):
    source = (
        STOLEN
        + """
def launch(x, out):
    channel, nonce = channel_and_nonce()
    if os.fork() == 0:
        channel.send(Reply(Status.done, nonce).encode())
        os._exit(0)
    time.sleep(600)
"""
    )
    found = failure(sandbox, source)
    assert found.reason is Reason.protocol and "another process" in found.detail


LATE = """
import threading, time
def launch(x, out):
    def later():
        time.sleep(0.01)
        out.copy_(x * 2)
    threading.Thread(target=later).start()
"""


def test_a_thread_that_writes_after_the_return_finds_itself_stopped(sandbox):
    child, sets = run(sandbox, LATE)
    assert sets[0].unwritten()[0].all()
    assert child.late_writes(0.2) == [0]


def test_a_loop_that_leaves_its_work_to_a_thread_is_refused(sandbox):
    sets = fresh_sets(4)
    child = sandbox.spawn(Kernel("source", LATE), sets, deadline=DEADLINE)
    with pytest.raises(ChildFailure) as caught:
        child.loop(4, DEADLINE)
    assert caught.value.reason in (Reason.not_written, Reason.late_write)


def test_a_loop_patched_to_skip_calls_is_refused(best):
    source = """
import torch
from autokernel.judge import child
def lazy(self, first, count):
    self.calls[(first + count - 1) % len(self.calls)]()
    return 0.001 * count
child.Runner.run = lazy
def launch(x, out): torch.mul(x, 2, out=out)
"""
    child = best.spawn(Kernel("source", source), fresh_sets(4), deadline=DEADLINE)
    with pytest.raises(ChildFailure) as caught:
        for _ in range(8):
            for one in child.sets:
                one.poison(0)
            child.loop(4, DEADLINE)
    assert caught.value.reason is Reason.not_written


def test_nothing_a_kernel_prints_blocks_or_is_seen(best, capfd):
    source = """
import os, sys
def launch(x, out):
    for fd in (1, 2):
        for _ in range(100):
            try:
                os.write(fd, b'accepted' * 10000)
            except OSError:
                pass
    print('accepted' * 100000)
    print('accepted' * 100000, file=sys.stderr)
    out.copy_(x)
"""
    _, sets = run(best, source)
    assert torch.equal(sets[0].outputs[0], sets[0].inputs[0])
    assert capfd.readouterr() == ("", "")


def test_a_child_that_says_more_than_asked_between_commands_is_out_of_protocol(best):
    source = (
        STOLEN
        + """
import threading
def launch(x, out):
    channel, nonce = channel_and_nonce()
    def later():
        time.sleep(0.02)
        channel.send(Reply(Status.done, nonce).encode())
    threading.Thread(target=later).start()
    out.copy_(x)
"""
    )
    child, _ = run(best, source)
    with pytest.raises(ChildFailure) as caught:
        child.late_writes(0.2)
    assert caught.value.reason is Reason.protocol


def test_damage_to_inputs_and_beyond_outputs_is_seen_from_outside(best):
    source = """
import ctypes
def launch(x, out):
    out.copy_(x)
    x[7] = 0
    ctypes.memset(out.data_ptr() + out.numel() * 4, 0x55, 1)
"""
    _, sets = run(best, source)
    assert sets[0].inputs_changed() == [0]
    assert sets[0].canaries_intact() == ["after out"]


def test_peak_memory_is_what_the_kernel_used(best):
    source = "import torch\ndef launch(x, out):\n    a = torch.ones(32 << 18)\n    out.copy_(x)\n"
    child, _ = run(best, source)
    assert 30 << 20 < child.peak_memory() < 120 << 20


def test_a_memory_limit_stops_many_small_allocations_too(sandbox):
    source = "kept = []\ndef launch(x, out):\n    while True: kept.append(bytearray(1 << 20))\n"
    assert failure(sandbox, source).reason is Reason.out_of_memory


def test_a_child_stopped_by_its_parent_can_be_killed(sandbox):
    child, _ = run(sandbox, DOUBLE)
    os.kill(child.pid, signal.SIGKILL)
    child.close()
    assert failure(sandbox, "def launch(x, out): 1 / 0").reason is Reason.exception


MODEL = """
import torch
from torch import nn
class NAME(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("shift", torch.zeros(width))
    def forward(self, x):
        return torch.relu(self.inner(x) + self.shift), x.sum(1)
"""
ARGUMENTS = "def get_init_inputs(): return [8]\n"
NAMES = ("inner.weight", "inner.bias", "shift")


def model_sets(count=3):
    outs = [TensorSpec(name="y", dtype="float32", shape=(4, 8), stride=(8, 1))]
    outs.append(TensorSpec(name="sums", dtype="float32", shape=(4,), stride=(1,)))
    shapes = [(4, 8), (8, 8), (8,), (8,)]
    return [BufferSet.create([torch.randn(s) for s in shapes], outs) for _ in range(count)]


@pytest.mark.parametrize("kind,copies", [("eager", False), ("eager", True), ("model_new", False)])
def test_models_run_on_the_shared_parameters(best, kind, copies):
    name = "ModelNew" if kind == "model_new" else "Model"
    source = MODEL.replace("NAME", name) + ("" if kind == "model_new" else ARGUMENTS)
    sets = model_sets()
    kernel = Kernel(kind, source, NAMES, reference=ARGUMENTS, copies=copies)
    child = best.spawn(kernel, sets, deadline=DEADLINE)
    child.loop(3, DEADLINE)
    child.close()
    for one in sets:
        x, weight, bias, shift = one.inputs
        torch.testing.assert_close(one.outputs[0], torch.relu(x @ weight.t() + bias + shift))
        torch.testing.assert_close(one.outputs[1], x.sum(1))
        assert one.inputs_changed() == []


def test_a_model_of_other_parameters_or_results_is_bad_source(best):
    for old, new, words in (
        ("self.inner =", "self.outer =", "inner.weight"),
        ("nn.Linear(width, width)", "nn.Linear(width, 2 * width)", "shape"),
        (", x.sum(1)", "", "results"),
        ("class NAME", "class Other", "ModelNew"),
    ):
        source = MODEL.replace(old, new).replace("NAME", "ModelNew").replace("self.inner(x)", "x") + ARGUMENTS
        with pytest.raises(ChildFailure, match=words) as caught:
            child = best.spawn(Kernel("model_new", source, NAMES), model_sets(1), deadline=DEADLINE)
            child.call(0, DEADLINE)
        assert caught.value.reason is Reason.bad_source
