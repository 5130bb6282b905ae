"""The doctor tries things; each failure has its line, its remedy and its exit status."""

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from autokernel import doctor
from autokernel.cli.screen import diagnosis
from autokernel.doctor import Check, Diagnosis, gpu, ipc


def autokernel(*arguments, **environment):
    command = [sys.executable, "-c", "from autokernel.cli.main import run; run()", *arguments]
    env = {key: value for key, value in os.environ.items() if key != "CXX"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


def checks(done):
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture(scope="module")
def here():
    """This machine."""
    return {check.name: check for check in doctor.examine().checks}


@pytest.fixture(scope="module")
def ailing(tmp_path_factory):
    """The command on a machine without programs, with a compiler and a cache folder that don't exist."""
    return autokernel(
        "doctor",
        "--json",
        PATH=str(tmp_path_factory.mktemp("empty")),
        CXX="/nowhere/g++",
        AUTOKERNEL_CACHE_DIR="/dev/null/cache",
    )


def test_every_line_that_is_not_ok_has_a_remedy(here, ailing):
    for check in (*here.values(), *(Check(**line) for line in checks(ailing).values())):
        assert bool(check.remedy) == (check.status != "ok"), check


def test_a_machine_that_can_run_the_tests_can_run_kernels(here):
    for name in ("python", "torch", "compiler", "git"):
        assert here[name].status != "fail", here[name]


def test_a_real_compiler_builds_and_runs_openmp():
    check = doctor.build_and_run(shutil.which("g++"))
    assert check.status == "ok"
    assert "OpenMP with" in check.found


def test_a_compiler_that_refuses_is_a_failure_with_its_own_words(script):
    check = doctor.build_and_run(script("echo 'cc1plus: out of cheese' >&2; exit 1"))
    assert check.status == "fail"
    assert "out of cheese" in check.found and "g++" in check.remedy


def test_a_compiler_whose_programs_do_not_run_is_a_failure(script):
    lying = script(
        'while [ "$1" != "-o" ]; do shift; done; '
        'printf "#!/bin/sh\\necho broken runtime >&2; exit 127" > "$2"; chmod +x "$2"'
    )
    check = doctor.build_and_run(lying)
    assert check.status == "fail"
    assert "does not run: broken runtime" in check.found


def test_a_compiler_whose_openmp_sums_wrongly_is_a_failure(script):
    lying = script(
        'while [ "$1" != "-o" ]; do shift; done; printf "#!/bin/sh\\necho 2 499499" > "$2"; chmod +x "$2"; echo v'
    )
    assert doctor.build_and_run(lying).status == "fail"


def test_what_fails_makes_the_command_end_with_status_1(ailing):
    assert ailing.returncode == 1
    assert json.loads(ailing.stdout)["healthy"] is False


def test_a_compiler_that_is_not_there_is_named(ailing):
    assert checks(ailing)["compiler"]["status"] == "fail"
    assert "/nowhere/g++" in checks(ailing)["compiler"]["found"]


def test_without_bubblewrap_the_sandbox_line_warns_and_names_the_package(ailing):
    assert checks(ailing)["sandbox"]["status"] == "warn"
    assert "apt-get install bubblewrap" in checks(ailing)["sandbox"]["remedy"]


def test_without_a_git_program_runs_are_still_committed(ailing):
    assert checks(ailing)["git"]["status"] == "warn"
    assert "pygit2" in checks(ailing)["git"]["found"]


def test_a_cache_folder_that_cannot_be_made_fails_with_the_variable_to_set(ailing):
    assert checks(ailing)["cache"]["status"] == "fail"
    assert "AUTOKERNEL_CACHE_DIR" in checks(ailing)["cache"]["remedy"]


@pytest.mark.parametrize(("load", "status"), [(0.0, "ok"), (0.5, "ok"), (0.51, "warn"), (9.0, "warn")])
def test_the_load_line_warns_above_half_a_program_a_core(load, status, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * doctor.usable_cores(), 0.0, 0.0))
    assert doctor.check_load().status == status


def test_a_check_that_breaks_is_a_failed_line_not_a_crash(monkeypatch):
    def broken():
        raise RuntimeError("no /proc here")

    monkeypatch.setattr(doctor, "_CHECKS", (("cpu", broken), ("load", doctor.check_load)))
    first, second = doctor.examine().checks
    assert (first.name, first.status) == ("cpu", "fail") and "no /proc here" in first.found
    assert second.name == "load"


FACTS = {
    "built_for": "13.0",
    "available": True,
    "count": 2,
    "warnings": [],
    "name": "NVIDIA Test",
    "uuid": "GPU-0",
    "capability": [9, 0],
    "free": 100 << 30,
    "total": 140 << 30,
    "sms": 132,
    "ran": True,
}
SEEN = {
    "driver": "580.65.06",
    "cuda": 13000,
    "programs": [],
    "busy_percent": 0,
    "sm": [345, 1980],
    "memory": [3201, 3201],
    "reasons": 1,
}


def test_a_machine_without_a_gpu_has_one_line_that_says_what_is_used_instead(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(gpu, "_nvidia_driver", lambda: False)
    (line,) = doctor.check_gpus()
    assert (line.name, line.status) == ("gpu", "ok")
    assert line.found == "none; kernels are written in C++ for the CPU"


def test_a_gpu_that_this_torch_was_not_built_for_is_a_warning_with_the_way_out(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(gpu, "_nvidia_driver", lambda: True)
    (line,) = doctor.check_gpus()
    assert line.status == "warn"
    assert "built for the CPU only" in line.found and "pip install" in line.remedy


def test_a_gpu_is_ok_only_when_a_kernel_ran_on_it():
    assert gpu.gpu_line(FACTS) == Check(
        "gpu", "ok", "NVIDIA Test (sm_90, 132 SMs), 100.0 GiB of 140.0 GiB free, 1 more (not used)"
    )
    wrong = gpu.gpu_line({**FACTS, "ran": False, "error": "no kernel image is available"})
    assert wrong.status == "fail" and "no kernel image" in wrong.found and "sm_90" in wrong.remedy
    assert gpu.gpu_line({**FACTS, "free": 1 << 30}).status == "warn"
    hidden = gpu.gpu_line({**FACTS, "available": False, "warnings": ["driver too old"]})
    assert hidden.status == "fail" and "driver too old" in hidden.found


@pytest.mark.parametrize(("supports", "status"), [(13000, "ok"), (13020, "ok"), (12080, "warn"), (None, "ok")])
def test_the_driver_must_support_the_cuda_that_torch_is_built_for(supports, status):
    assert gpu.driver_line({**SEEN, "cuda": supports}, "13.0").status == status


def test_other_programs_on_the_gpu_are_named_and_this_one_is_not():
    assert gpu.programs_line({**SEEN, "programs": [[os.getpid(), 5 << 30]]}).status == "ok"
    line = gpu.programs_line({**SEEN, "programs": [[4711, 5 << 30], [4712, None]], "busy_percent": 97})
    assert line.status == "warn"
    assert "4711 (5.0 GiB), 4712" in line.found and "97 %" in line.found


@pytest.mark.parametrize(
    ("reasons", "status", "word"),
    [(0, "ok", ""), (1, "ok", ""), (2, "ok", ""), (4, "warn", "power cap"), (0x41, "warn", "heat"), (None, "ok", "")],
)
def test_clocks_warn_when_heat_or_power_holds_them_down(reasons, status, word):
    line = gpu.clocks_line({**SEEN, "reasons": reasons})
    assert line.status == status
    assert "SM 345 of 1980 MHz, memory 3201 of 3201 MHz" in line.found and word in line.found


def test_ipc_where_it_cannot_work_answers_with_the_reason(monkeypatch):
    problem = ipc.probe(index=99)
    assert problem and ("libcuda" in problem or "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE" in problem)
    monkeypatch.setattr(ipc, "probe", lambda **_: problem)
    line = gpu._ipc_line()
    assert line.status == "warn" and problem in line.found and "host memory" in line.remedy


def test_a_probe_that_dies_or_hangs_gives_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_HERE", tmp_path)
    monkeypatch.setattr(gpu, "SECONDS", 2)
    (tmp_path / "dies.py").write_text("import sys; print('so far'); sys.exit('CUDA error: unknown')")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    (tmp_path / "talks.py").write_text("print('noise'); print('{\"ok\": 1}')")
    with pytest.raises(gpu.NoAnswer, match="CUDA error: unknown"):
        gpu._ask("dies.py")
    with pytest.raises(gpu.NoAnswer, match="within 2 s"):
        gpu._ask("hangs.py")
    assert gpu._ask("talks.py") == {"ok": 1}


def test_the_probe_tells_what_torch_sees():
    facts = gpu._ask("probes.py", "facts")
    assert facts["built_for"] == torch.version.cuda
    assert facts["available"] == torch.cuda.is_available()


def test_warnings_alone_leave_the_machine_healthy():
    assert Diagnosis((Check("a", "ok", ""), Check("b", "warn", "", "do"))).healthy
    assert not Diagnosis((Check("a", "ok", ""), Check("b", "fail", "", "do"))).healthy


def test_the_terminal_shows_each_remedy_below_its_line():
    console = Console(width=80, file=io.StringIO())
    console.print(
        diagnosis((Check("a", "ok", "fine"), Check("b", "fail", "gone [x]", "fetch it"), Check("c", "ok", "d")))
    )
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [["ok", "a", "fine"], ["fail", "b", "gone", "[x]"], ["fetch", "it"], ["ok", "c", "d"]]
