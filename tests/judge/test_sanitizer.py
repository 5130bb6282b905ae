"""compute-sanitizer without a GPU: what its log means, which shapes it is given, and the way to it and back.

The way is real (sandbox, exec, descriptors, the program that is looked at); in the tool's place stands a script that
runs what it is told to and writes a log as the tool does.
"""

import shutil
import sys

import pytest

from autokernel.judge import Opponent, Request, isolation, sanitizer
from autokernel.judge.children import Kernel
from autokernel.judge.judge import Judge, _Judging
from autokernel.judge.protocol import Control
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.sanitizer import Sanitizer, read, small_sizes
from autokernel.judge.seeds import Seeds
from autokernel.records import Dim, Outcome, Reason, Stage, Task, TensorSpec
from autokernel.task.file import from_file
from autokernel.testing.cheaters import ODD, reference

SOURCE = """
@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    pass
"""
CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
NO_RACE = """========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
BEYOND = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at softmax+0x210 in kernel.py:14
=========     by thread (61,0,0) in block (60,0,0)
=========     Access at 0x7f6510c00001 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 7442 bytes
=========
========= Target application returned an error
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at softmax+0x90 in kernel.py:14
=========     and Read access at softmax+0x100 in kernel.py:15 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
LIBRARY = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void at::native::<unnamed>::softmax_warp<float, (int)4>(float *, int)+0x10
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


def test_a_clean_log_with_status_0_is_clean():
    assert read("memcheck", 0, CLEAN, "", SOURCE) == sanitizer.Read()
    assert read("racecheck", 0, NO_RACE, "", SOURCE) == sanitizer.Read()


@pytest.mark.parametrize("tool,log", [("memcheck", BEYOND), ("racecheck", RACE)])
def test_a_report_on_the_kernel_s_own_function_is_a_finding_whatever_the_status(tool, log):
    for status in (86, 0, 1):
        found = read(tool, status, log, "", SOURCE)
        assert "softmax+0x" in found.finding and not found.problem
    assert "allocation" in read("memcheck", 86, BEYOND, "", SOURCE).finding


def test_a_report_on_another_s_function_is_a_remark():
    found = read("memcheck", 86, LIBRARY, "", SOURCE)
    assert not found.finding and not found.problem
    assert "no function of this kernel file" in found.remarks[0]
    assert not read("racecheck", 86, RACE.replace("softmax", "cutlass_gemm"), "", SOURCE).finding


def test_a_race_of_severity_warning_is_a_remark():
    log = RACE.replace("Error:", "WARNING:").replace("(1 error, 0 warnings)", "(0 errors, 1 warning)")
    found = read("racecheck", 0, log, "", SOURCE)
    assert not found.finding and not found.problem and "WARNING" in found.remarks[0]


@pytest.mark.parametrize(
    "status,log",
    [
        (0, ""),  # the tool was killed, or never began
        (0, "========= COMPUTE-SANITIZER\n"),
        (1, CLEAN),
        (-9, CLEAN),
        (0, CLEAN + "========= ERROR SUMMARY: 0 errors\n"),  # one too many: somebody else wrote
        (0, CLEAN.replace("0 errors", "3 errors")),
        (0, "========= Internal Sanitizer Error: The Sanitizer didn't track the launch.\n" + CLEAN),
        (86, CLEAN.replace("0 errors", "1 error") + "========= Target application returned an error\n"),
        (255, "========= Error: Target application terminated before first instrumented API call\n"),
        (255, "========= Error: Device not supported\n" + CLEAN),
        (0, NO_RACE),  # another tool's
        (0, " ".join(CLEAN.splitlines())),
    ],
)
def test_whatever_is_not_wholly_clean_and_no_finding_says_nothing_of_the_kernel(status, log):
    found = read("memcheck", status, log, "ValueError: no such tile", SOURCE)
    assert "no such tile" in found.problem and not found.finding


def test_what_the_tool_says_when_it_can_not_work_is_handed_on():
    log = "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the manual.\n"
    assert "Device not supported" in read("memcheck", 255, log, "", SOURCE).problem


# --- shapes -----------------------------------------------------------------------------------------------------------


def task(rows=4096, columns=512, **free):
    return Task(
        id="01",
        title="a task",
        fingerprint="f",
        shape_key="k",
        dims={"s0": Dim(value=rows, free=True, min=1), "s1": Dim(value=columns)},
        inputs=(TensorSpec(name="x", dtype="float32", shape=(rows, columns), stride=(columns, 1), dims=("s0", "s1")),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(rows, columns), stride=(columns, 1), dims=("s0", "s1")),),
    )


def test_shapes_are_small_one_aligned_one_odd_and_the_smallest():
    assert small_sizes(task(), {"s0": (1, None)}) == [{"s0": 64}, {"s0": 61}, {"s0": 1}]
    assert small_sizes(task(rows=40), {"s0": (1, None)}) == [{"s0": 40}, {"s0": 1}]
    assert small_sizes(task(), {"s0": (128, None)}) == [{"s0": 128}]
    assert small_sizes(task(), {"s0": (2, 32)}) == [{"s0": 32}, {"s0": 2}]


def test_a_kernel_for_its_own_shape_alone_is_looked_at_there_if_that_is_small():
    assert small_sizes(task(rows=64), {}) == [{}]
    assert small_sizes(task(rows=64), {"s0": (64, 64)}) == [{}]
    assert small_sizes(task(rows=1 << 16), {}) == []
    assert small_sizes(task(columns=1 << 23), {"s0": (1, None)}) == []


# --- there and back ---------------------------------------------------------------------------------------------------

STAND_IN = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA (R) Compute Sanitizer"; echo "Version 2025.3.1.0 (build 1)"; exit 0; fi
while [ "$1" != "PYTHON" ]; do
    case "$1" in --log-file) log=$2;; --tool) tool=$2;; esac
    shift
done
"$@"
status=$?
echo "========= COMPUTE-SANITIZER" >> $log
[ $status = 0 ] || echo "========= Target application returned an error" >> $log
if [ $tool = memcheck ]; then echo "========= ERROR SUMMARY: 0 errors" >> $log
else echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" >> $log; fi
exit $status
"""
RIGHT = """
import os

def launch(x, y):
    if x.untyped_storage().nbytes() != 4 * x.numel() or x.shape[1] != 512 or not x.any():
        raise ValueError(f"not the task's values in memory of their own: {x.shape}")
    y.copy_(x)
"""
KINDS = ["plain", pytest.param("bubblewrap", marks=pytest.mark.skipif(
    isolation.bubblewrap_problem() is not None, reason="bubblewrap does not work here"))]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("readable-inside")
    with Sandbox(isolation=request.param, threads=1, cpp_cache=folder) as made:
        yield made


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """For what does not depend on the isolation."""
    with Sandbox(threads=1, cpp_cache=tmp_path_factory.mktemp("readable-inside")) as made:
        yield made


def tool(sandbox, name, text):
    path = sandbox.cpp_cache / name
    path.write_text(text.replace("PYTHON", sys.executable))
    path.chmod(0o755)
    return path


def looked(sandbox, source, name="stand-in", text=STAND_IN):
    made = Sanitizer(task(), sandbox, tool(sandbox, name, text))
    return made.look(Kernel("source", source), {"s0": (1, None)}, 7)


def test_a_kernel_goes_once_through_both_tools_on_small_shapes_of_its_task(sandbox):
    made, kernel = Sanitizer(task(), sandbox, tool(sandbox, "stand-in", STAND_IN)), Kernel("source", RIGHT)
    found = made.look(kernel, {"s0": (1, None)}, 7)
    assert found.record.tools == ("memcheck", "racecheck"), found.record.not_run
    assert found.record.version == "2025.3.1.0" and found.record.sizes == ("s0=64", "s0=61", "s0=1")
    assert found.reason is None and found.record.not_run == ""
    assert made.look(kernel, {"s0": (1, None)}, 8) is found


def test_a_finding_refuses_the_kernel_and_ends_the_looking(best):
    lines = "\\n".join(BEYOND.splitlines())
    beyond = STAND_IN.replace(
        'echo "========= ERROR SUMMARY: 0 errors" >> $log', f"printf '{lines}\\n' >> $log; exit 86"
    )
    sanitizer._broken[tool(best, "finds", beyond), best.isolation] = ""  # it would find this in a copy, too
    found = looked(best, SOURCE_AND_LAUNCH, "finds", beyond)
    assert found.reason is Reason.out_of_bounds
    assert found.record.tools == ("memcheck",) and "racecheck was not asked" in found.record.not_run
    assert found.finding.startswith("memcheck, at s0=64; s0=61; s0=1: Invalid __global__ read")


SOURCE_AND_LAUNCH = "def softmax(x): pass\ndef launch(x, y): y.copy_(x)\n"


def test_a_kernel_that_fails_under_the_tool_alone_is_not_refused_and_the_verdict_has_its_words(best):
    found = looked(best, "def launch(x, y): raise KeyError('only here')\n")
    assert found.reason is None and found.record.tools == ()
    assert "only here" in found.record.not_run and "exit status 1" in found.record.not_run


def test_what_hangs_is_ended_and_too_slow(best, monkeypatch):
    looked(best, RIGHT)  # the tool works here
    monkeypatch.setattr(sanitizer, "DEADLINE", 1.0)
    found = looked(best, "import time\ndef launch(x, y): time.sleep(600)\n")
    assert found.reason is None and "too slow" in found.record.not_run


def test_a_tool_that_never_works_here_is_asked_once(best):
    counting = STAND_IN.replace("status=$?", "status=$?; echo 'Device not supported' >&2; status=1")
    first = looked(best, RIGHT, "broken", counting)
    assert "Device not supported" in first.record.not_run
    (best.cpp_cache / "broken").unlink()
    again = Sanitizer(task(), best, best.cpp_cache / "broken")
    assert again.look(Kernel("source", RIGHT), {"s0": (1, None)}, 7).record == first.record


def test_where_there_is_no_tool_the_record_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with Sandbox(isolation="plain", threads=1) as sandbox:
        found = Sanitizer(task(), sandbox).look(Kernel("source", RIGHT), {"s0": (1, None)}, 7)
    assert "not installed" in found.record.not_run and found.record.version is None


def test_a_program_that_is_not_there_in_the_sandbox_can_not_be_started(sandbox):
    status, words = sandbox.program(["/no/such/program"], [], 20.0)
    assert status is not None and status >> 8 == 127 and "/no/such/program" in words


def test_nothing_that_a_program_started_outlives_it(sandbox):
    status, _ = sandbox.program(["/bin/sh", "-c", "setsid sleep 600 & exit 3"], [], 20.0)
    assert status is not None and status >> 8 == 3
    assert sandbox.control(Control.status).left == 0


# --- in the judge -----------------------------------------------------------------------------------------------------


def judged(best, monkeypatch, text, name):
    """A verdict on a right kernel that could be kept; on a CPU the judge would not ask."""
    monkeypatch.setattr(_Judging, "_could_be_kept", lambda self: True)
    judge = Judge(from_file(reference("rms_norm")), best, seeds=Seeds.fresh())
    judge.sanitizer = Sanitizer(judge.loaded.task, best, tool(best, name, text))
    source = next(case.source for case in ODD if case.name == "plain")
    return judge.verdict(source, Opponent("eager"), Request(drop_slow=False))


def test_a_verdict_says_that_both_tools_ran(best, monkeypatch):
    verdict = judged(best, monkeypatch, STAND_IN, "stand-in")
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert verdict.stage is Stage.sanitizer and verdict.timing is not None
    assert verdict.sanitizer is not None and verdict.sanitizer.tools == ("memcheck", "racecheck")


def test_a_finding_rejects_and_there_is_no_timing(best, monkeypatch):
    lines = "\\n".join(RACE.replace("softmax", "rms_norm").splitlines())
    races = STAND_IN.replace("else echo", f"else printf '{lines}\\n' >> $log; exit 86; echo")
    verdict = judged(best, monkeypatch, races, "races")
    assert (verdict.verdict, verdict.stage, verdict.reason) == (Outcome.rejected, Stage.sanitizer, Reason.race)
    assert verdict.timing is None and "Race reported" in verdict.explanation
    assert verdict.sanitizer is not None and verdict.sanitizer.tools == ("memcheck", "racecheck")


def test_a_tool_that_is_not_there_refuses_nothing_and_the_verdict_says_so(best, monkeypatch):
    verdict = judged(best, monkeypatch, STAND_IN.replace("Version", "Unheard of"), "no-version")
    assert verdict.verdict is Outcome.accepted and verdict.stage is Stage.timing
    assert verdict.sanitizer is not None and "version" in verdict.sanitizer.not_run
    assert verdict.stages[-1].name is Stage.sanitizer and verdict.stages[-1].status == "skipped"


@pytest.mark.parametrize(
    "source",
    [
        "@triton.jit\ndef rows(x_ptr):\n    pass",
        "SOURCE = '__global__ void rows(float* x) {}'",
        "SOURCE = '__global__ void __launch_bounds__(256) rows(float* x) {}'",
        'SOURCE = r"""static __global__ void\nrows(float* x) {}"""',
    ],
)
def test_a_function_of_the_file_is_known_however_it_is_declared(source):
    assert sanitizer._defined("rows", source)
    assert not sanitizer._defined("columns", source)
    assert not sanitizer._defined("row", source)
