"""The doctor tries things; each failure has its line, its remedy and its exit status."""

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from autokernel import doctor
from autokernel.cli.screen import diagnosis
from autokernel.doctor import Check, Diagnosis


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
