"""`--help` is quick: it imports nothing heavy, and lists what works."""

import subprocess
import sys

import pytest

FORBIDDING = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "matplotlib", "pygit2", "triton"}:
            raise AssertionError(f"{name} was imported for --help")
        return None

sys.meta_path.insert(0, Forbid())
sys.argv = ["autokernel", *ARGUMENTS]
from autokernel.cli.main import run
run()
"""


def forbidding(*arguments):
    code = FORBIDDING.replace("*ARGUMENTS", f"*{list(arguments)!r}")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


COMMANDS = ["optimize", "profile", "extract", "bench", "submit", "show", "resume", "verify", "report", "doctor"]


@pytest.mark.parametrize("command", [[], *[[name] for name in COMMANDS]], ids=lambda found: " ".join(found) or "all")
def test_help_imports_neither_torch_nor_numpy(command):
    done = forbidding(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_forbidding_hook_would_be_noticed():
    done = forbidding("doctor", "--json")
    assert "was imported for --help" in done.stdout  # the doctor does import torch, and says that it can't


def test_help_lists_the_commands_that_work():
    shown = forbidding("--help").stdout
    assert all(name in shown for name in COMMANDS)
    assert not [name for name in ("watch", "export", "kernelbench", "mcp", "fsck") if name in shown]


def test_an_unknown_flag_is_the_users_to_fix():
    done = forbidding("optimize", "model.py", "--warp-speed")
    assert done.returncode == 2
    assert "--warp-speed" in done.stderr


@pytest.mark.parametrize("budget", ["0s", "3x", "-1m", "soon"])
def test_an_unusable_budget_is_the_users_to_fix_and_says_how(budget):
    done = forbidding("optimize", "model.py", f"--budget={budget}")
    assert done.returncode == 2
    assert "30s, 3m or 1h" in " ".join(done.stderr.replace("│", " ").split())


def test_version_is_the_distributions():
    from importlib.metadata import version

    assert forbidding("--version").stdout.strip() == f"autokernel {version('autokernel-torch')}"
