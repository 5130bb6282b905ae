"""The sandbox: what a child can reach, what is left behind, what survives a kill. Real processes throughout."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch

from autokernel.errors import SandboxUnavailable
from autokernel.judge import isolation
from autokernel.judge.buffers import BufferSet
from autokernel.judge.sandbox import ChildFailure, Kernel, Sandbox
from autokernel.records import Reason, TensorSpec

DEADLINE = 60.0
DOUBLE = Kernel("source", "import torch\ndef launch(x, out): torch.mul(x, 2, out=out)\n")
OUT = TensorSpec(name="out", dtype="float32", shape=(64,), stride=(1,))
KINDS = ["plain", pytest.param("bubblewrap", marks=pytest.mark.skipif(
    isolation.bubblewrap_problem() is not None, reason="bubblewrap does not work here"))]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cpp-cache")
    (cache / "readable").write_text("yes")
    with Sandbox(isolation=request.param, threads=1, cpp_cache=cache) as made:
        assert made.isolation == request.param
        yield made


def fresh_set():
    return BufferSet.create([torch.randn(64)], [OUT])


def answer(sandbox, body):
    """Run a kernel whose function `found() -> bool | number` is `body`; what it returned."""
    lines = "\n".join("    " + line for line in body.splitlines())
    source = f"def found():\n{lines}\ndef launch(x, out):\n    out.fill_(float(found()))\n"
    made = fresh_set()
    child = sandbox.spawn(Kernel("source", source), [made], deadline=DEADLINE)
    child.call(0, DEADLINE)
    child.close()
    return made.outputs[0][0].item()


def works(sandbox):
    made = fresh_set()
    child = sandbox.spawn(DOUBLE, [made], deadline=DEADLINE)
    child.call(0, DEADLINE)
    child.close()
    return torch.equal(made.outputs[0], made.inputs[0] * 2)


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def running(marker):
    """Processes on this machine with `marker` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def gone(marker, seconds=20.0):
    until = time.monotonic() + seconds
    while running(marker) and time.monotonic() < until:
        time.sleep(0.02)
    return not running(marker)


def spawner(marker, then):
    """A kernel that starts processes in sessions of their own that ignore SIGTERM, then does `then`."""
    return Kernel(
        "source",
        f"""
import os, signal, subprocess, time
def launch(x, out):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.execv("/bin/sleep", ["sleep", "600.{marker}"])
            os._exit(0)
    {then}
""",
    )


def number():
    return str(uuid.uuid4().int)[:12]


def test_a_kernel_runs_and_its_outputs_are_seen(sandbox):
    sets = [fresh_set() for _ in range(3)]
    child = sandbox.spawn(DOUBLE, sets, deadline=DEADLINE)
    child.call(1, DEADLINE)
    assert [bool(s.unwritten()[0].any()) for s in sets] == [True, False, True]
    seconds = child.loop(7, DEADLINE)
    assert seconds > child.claimed_seconds >= 0
    assert all(torch.equal(s.outputs[0], s.inputs[0] * 2) for s in sets)
    assert child.late_writes(0.01) == []
    child.close()


def test_a_child_is_stopped_between_commands_and_gone_when_closed(sandbox):
    child = sandbox.spawn(DOUBLE, [fresh_set()], deadline=DEADLINE)
    pid = child.pid
    assert state(pid) == "T"
    child.call(0, DEADLINE)
    assert state(pid) == "T"
    child.close()
    child.close()
    assert state(pid) is None
    with pytest.raises(ValueError, match="closed"):
        child.call(0, DEADLINE)


def test_a_new_child_ends_the_one_before(sandbox):
    first = sandbox.spawn(DOUBLE, [fresh_set()], deadline=DEADLINE)
    second = sandbox.spawn(DOUBLE, [fresh_set()], deadline=DEADLINE)
    assert state(first.pid) is None and state(second.pid) == "T"
    second.close()


def test_the_environment_is_the_sandboxs_own(sandbox):
    names = "{'PATH', 'HOME', 'LANG', 'LC_CTYPE', 'OMP_NUM_THREADS', 'PYTHONDONTWRITEBYTECODE', 'PWD', "
    names += "'AUTOKERNEL_CPP_CACHE', 'LD_LIBRARY_PATH', 'LOGNAME', 'TORCHINDUCTOR_COMPILE_THREADS', 'TMPDIR'}"
    seen = "open('/proc/self/environ').read().split(chr(0))"
    body = (
        f"import os\nreturn len(set(os.environ) - {names}) + sum(e.split('=')[0] not in {names} for e in {seen} if e)"
    )
    assert answer(sandbox, body) == 0


def test_the_parent_can_not_be_read(sandbox):
    """Not its environment, not its memory, not its files, under the same user."""
    body = "import os\nhits = 0\n"
    body += "for name in ('environ', 'mem', 'maps', 'fd/0', 'cwd/x'):\n"
    body += f"    try:\n        os.open(f'/proc/{os.getpid()}/{{name}}', os.O_RDONLY)\n        hits += 1\n"
    body += "    except OSError:\n        pass\nreturn hits"
    assert answer(sandbox, body) == 0


def test_the_zygote_can_not_be_read_traced_or_killed(sandbox):
    if sandbox.isolation == "plain":
        pytest.skip("plain isolation does not stop signals")
    body = """import ctypes, os, signal
libc = ctypes.CDLL(None)
hits = 0
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try:
        os.kill(1, number)
    except OSError:
        pass
hits += libc.ptrace(16, 1, 0, 0) == 0
try:
    os.open('/proc/1/mem', os.O_RDWR)
    hits += 1
except OSError:
    pass
return hits"""
    before = sandbox._zygote_pid
    assert answer(sandbox, body) == 0
    assert works(sandbox) and sandbox._zygote_pid == before


def test_there_are_no_capabilities_and_none_to_be_had(sandbox):
    body = "lines = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
    body += "held = sum(int(lines[k], 16) for k in ('CapEff', 'CapPrm', 'CapInh', 'CapBnd', 'CapAmb'))\n"
    body += "return held + (int(lines['NoNewPrivs']) != 1)"
    assert answer(sandbox, body) == 0


def test_compiled_kernels_can_be_read(sandbox):
    body = "import os\nreturn open(os.environ['AUTOKERNEL_CPP_CACHE'] + '/readable').read() == 'yes'"
    assert answer(sandbox, body) == 1


def test_bubblewrap_hides_the_users_files_and_lets_nothing_be_changed(sandbox, tmp_path):
    if sandbox.isolation == "plain":
        pytest.skip("plain isolation does not hide files")
    secret = tmp_path / "other-candidate.py"
    secret.write_text("secret")
    package = Path(isolation.__file__)
    body = f"""import os
hits = 0
cache = os.environ['AUTOKERNEL_CPP_CACHE']
for path in ({str(secret)!r}, {str(Path(__file__))!r}, '/etc/passwd', '/root/.bashrc', '/root/.ssh', '/home'):
    hits += os.path.exists(path)
for path in ({str(package)!r}, cache + '/readable', cache + '/new', '/usr/new', '/new', '/dev/new', '/etc/new'):
    try:
        open(path, 'a').close()
        hits += 1
    except OSError:
        pass
return hits"""
    assert answer(sandbox, body) == 0
    assert secret.read_text() == "secret"


def test_bubblewrap_has_no_network(sandbox):
    if sandbox.isolation == "plain":
        pytest.skip("plain isolation has the network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        body = f"""import socket
try:
    socket.create_connection(('127.0.0.1', {port}), timeout=2)
    return 1
except OSError:
    return 0"""
        assert answer(sandbox, body) == 0


def test_bubblewrap_children_can_not_leave_anything_for_the_next(sandbox):
    if sandbox.isolation == "plain":
        pytest.skip("plain isolation shares /tmp")
    leave = """import ctypes, os
os.makedirs('/tmp/a/b')
open('/tmp/a/b/cache', 'w').write('outputs')
open('/dev/shm/cache', 'w').write('outputs')
os.chmod('/tmp/a', 0)
return ctypes.CDLL(None).shmget(4711, 4096, 0o1600) >= 0"""
    look = """import ctypes, os
hits = os.path.exists('/dev/shm/cache') + os.path.exists('/tmp/a')
return hits + (ctypes.CDLL(None).shmget(4711, 4096, 0) >= 0)"""
    assert answer(sandbox, leave) == 1
    assert answer(sandbox, look) == 0


def test_folders_deeper_than_a_path_can_be_are_cleared_away(sandbox):
    if sandbox.isolation == "plain":
        pytest.skip("plain isolation shares /tmp")
    leave = """import os
os.chdir('/tmp')
for i in range(1200):
    os.mkdir('d' * 200)
    open('file', 'w').close()
    os.chdir('d' * 200)
return 1"""
    assert answer(sandbox, leave) == 1
    before = sandbox._zygote_pid
    look = "import os\nreturn len([name for name in os.listdir('/tmp') if len(name) == 200 or name == 'file'])"
    assert answer(sandbox, look) == 0
    assert sandbox._zygote_pid == before, "the zygote lived on"


def test_a_zygote_that_dies_when_asked_for_a_child_is_replaced_at_once(sandbox, monkeypatch):
    assert works(sandbox)
    before = sandbox._zygote_pid
    monkeypatch.setattr(sandbox, "_alive", lambda: True)
    sandbox._control.shutdown(socket.SHUT_RDWR)
    assert works(sandbox)
    assert sandbox._zygote_pid != before


def test_a_process_whose_first_thread_has_ended_is_stopped_all_the_same(sandbox):
    """Its state is that of a zombie, while another thread of it goes on writing."""
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    source = f"""import ctypes, os, threading, time
def launch(x, out):
    if os.fork():
        time.sleep(0.3)
        return
    def count():
        while True:
            out[1] += 1
    out[1] = 0
    threading.Thread(target=count).start()
    ctypes.CDLL(None).syscall({number}, 0)
"""
    made = fresh_set()
    child = sandbox.spawn(Kernel("source", source), [made], deadline=DEADLINE)
    child.call(0, DEADLINE)
    seen = made.outputs[0][1].item()
    time.sleep(0.05)
    assert seen > 0 and made.outputs[0][1].item() == seen
    child.close()


def test_everything_a_kernel_started_is_killed_at_the_deadline(sandbox):
    marker = number()
    with pytest.raises(ChildFailure) as caught:
        child = sandbox.spawn(spawner(marker, "time.sleep(600)"), [fresh_set()], deadline=DEADLINE)
        child.call(0, 2.0)
    assert caught.value.reason is Reason.timeout
    assert running(marker) == []
    assert works(sandbox)


def test_what_a_kernel_left_running_is_stopped_with_it_and_then_killed(sandbox):
    marker = number()
    child = sandbox.spawn(spawner(marker, "time.sleep(0.5); out.copy_(x)"), [fresh_set()], deadline=DEADLINE)
    child.call(0, DEADLINE)
    left = running(marker)
    assert len(left) == 3 and {state(pid) for pid in left} == {"T"}
    child.close()
    assert running(marker) == []


def test_a_child_killed_from_outside_died_of_it(sandbox):
    child = sandbox.spawn(DOUBLE, [fresh_set()], deadline=DEADLINE)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailure, match="SIGKILL") as caught:
        child.call(0, DEADLINE)
    assert caught.value.reason is Reason.died
    assert works(sandbox)


def test_a_killed_zygote_is_replaced(sandbox):
    child = sandbox.spawn(DOUBLE, [fresh_set()], deadline=DEADLINE)
    os.kill(sandbox._zygote_pid, signal.SIGKILL)
    with pytest.raises(ChildFailure) as caught:
        child.call(0, DEADLINE)
    assert caught.value.reason is Reason.died
    assert state(child.pid) in (None, "Z", "X")
    assert works(sandbox)


def test_closing_leaves_no_process(sandbox):
    """A sandbox of its own: closed while a child and its grandchildren run."""
    marker = number()
    with Sandbox(isolation=sandbox.isolation, threads=1) as own:
        child = own.spawn(spawner(marker, "time.sleep(0.5)"), [fresh_set()], deadline=DEADLINE)
        child.call(0, DEADLINE)
        assert len(running(marker)) == 3
        pids = [own._zygote_pid, own._process.pid, child.pid]
    assert running(marker) == [] and [state(pid) for pid in pids] == [None] * 3


ORPHANS = """
import sys, torch
sys.path.insert(0, {folder!r})
from test_sandbox import spawner, fresh_set, Sandbox
with Sandbox(isolation={kind!r}, threads=1) as own:
    child = own.spawn(spawner({marker!r}, "time.sleep(600)"), [fresh_set()], deadline=60)
    print(own._zygote_pid, flush=True)
    child.call(0, 600)
"""


def test_nothing_outlives_a_parent_that_is_killed(sandbox):
    marker = number()
    text = ORPHANS.format(folder=str(Path(__file__).parent), kind=sandbox.isolation, marker=marker)
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    zygote = int(parent.stdout.readline())
    until = time.monotonic() + 30
    while len(running("600." + marker)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(running("600." + marker)) == 3
    parent.kill()
    parent.wait()
    assert gone("600." + marker)
    until = time.monotonic() + 20
    while state(zygote) not in (None, "Z") and time.monotonic() < until:
        time.sleep(0.02)
    assert state(zygote) in (None, "Z")


def test_the_parent_is_not_dumpable_while_it_judges(sandbox):
    assert isolation.prctl(isolation.PR_GET_DUMPABLE) == 0


def test_bubblewrap_asked_for_and_missing_is_a_named_error(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    isolation.bubblewrap_problem.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match="not installed"):
            Sandbox(isolation="bubblewrap", threads=1)
        assert Sandbox(isolation="auto", threads=1).isolation == "plain"
    finally:
        isolation.bubblewrap_problem.cache_clear()
