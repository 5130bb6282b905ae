"""How a command ends: statuses, messages, where words go."""

import json
import re
import sys
from pathlib import Path

import pytest
import typer

from autokernel.cli.main import _finish, status
from autokernel.cli.options import seconds
from autokernel.cli.screen import Screen
from autokernel.errors import JudgeUnsound, NotWritable, TargetNotFound
from autokernel.loop.signals import Stopped
from autokernel.report import RunView


def leave(screen, error):
    with pytest.raises(typer.Exit) as left, screen:
        raise error
    return left.value.exit_code


@pytest.mark.parametrize(("error", "code"), [(TargetNotFound(path="x.py"), 2), (JudgeUnsound(detail="d"), 3)])
def test_a_named_error_is_its_message_on_stderr_and_its_own_status(error, code, capsys):
    assert leave(Screen(), error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == str(error)
    assert "Traceback" not in err


def test_verbose_adds_the_traceback_of_a_named_error(capsys):
    leave(Screen(verbose=True), TargetNotFound(path="x.py"))
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_is_ours_and_its_traceback_is_in_a_file(capsys):
    assert leave(Screen(), KeyError("surprise [bold]")) == 3
    err = capsys.readouterr().err
    assert "surprise [bold]" in err and "Traceback" not in err
    path = Path(re.search(r"(/\S+autokernel-crash-\S+\.txt)", err)[1])
    assert "test_screen.py" in path.read_text()
    path.unlink()


def test_an_exit_passes_through_unchanged():
    assert leave(Screen(), typer.Exit(1)) == 1


def test_a_stopped_run_ends_as_shells_expect_and_says_by_what(capsys):
    assert leave(Screen(), Stopped("SIGHUP")) == 130
    assert capsys.readouterr().err == "Stopped by SIGHUP.\n"


def test_an_interrupt_is_not_an_error_of_ours_and_says_how_to_go_on(capsys):
    assert leave(Screen(), KeyboardInterrupt()) == 130
    assert "autokernel resume RUN" in capsys.readouterr().err


def test_with_json_only_json_is_on_stdout(capsys):
    screen = Screen(as_json=True)
    screen.say("working")
    screen.show("a table")
    screen.write_json({"answer": 1})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"answer": 1}
    assert "working" in err and "a table" not in err


def test_without_json_no_json_is_written(capsys):
    screen = Screen()
    screen.say("tensor[0] [red]")
    screen.write_json({"answer": 1})
    assert capsys.readouterr().out == "tensor[0] [red]\n"


def test_quiet_drops_progress_but_not_the_answer(capsys):
    screen = Screen(quiet=True)
    screen.say("working")
    screen.show("a table")
    assert capsys.readouterr().out.strip() == "a table"


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90.0), ("30s", 30.0), ("3m", 180.0), ("1h", 3600.0), ("1.5h", 5400.0), (" 2m ", 120.0)]
)
def test_a_budget_is_a_number_with_a_unit(text, value):
    assert seconds(text) == value


class Result:
    def __init__(self, result):
        self.result = result


@pytest.mark.parametrize(
    ("result", "require_gain", "code"),
    [("gain", True, 0), ("gain", False, 0), ("no gain", False, 0), ("no gain", True, 1), ("failed", False, 1)],
)
def test_the_status_of_a_run_is_the_answer_to_what_was_asked(result, require_gain, code):
    assert status(Result(result), require_gain) == code


class Done:
    """A run that ended with this proof on disk."""

    config = None

    def __init__(self, proof, interrupted):
        self.proof, self.interrupted = proof, interrupted

    def view(self):
        return RunView(proof=self.proof)


@pytest.mark.parametrize(("interrupted", "code"), [(False, 0), (True, 130)])
def test_a_run_that_was_stopped_ends_with_the_status_of_a_signal(interrupted, code):
    with pytest.raises(typer.Exit) as left:
        _finish(Done(None, interrupted), Screen())
    assert left.value.exit_code == code


def test_what_the_users_code_prints_is_not_among_the_json(capsys):
    with Screen(as_json=True) as screen:
        sys.stdout.write("a model that greets\n")
        screen.write_json({"a": 1})
    sys.stdout.write("afterwards\n")
    out, err = capsys.readouterr()
    assert out == '{\n  "a": 1\n}\nafterwards\n'
    assert "a model that greets" in err


def test_a_run_without_a_proof_has_no_gain_to_show():
    assert status(None, False) == 0
    assert status(None, True) == 1


def test_text_for_other_programs_ends_with_one_newline(capsys):
    Screen().write("a")
    Screen().write("b\n")
    sys.stdout.flush()
    assert capsys.readouterr().out == "a\nb\n"


def test_looking_if_a_file_can_be_written_leaves_it_as_it_was(tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("kept")
    for path in (old, new, None):
        Screen().check_writable(path)
    assert old.read_text() == "kept" and not new.exists()


def test_a_folder_in_the_place_of_a_file_is_the_users_to_fix(tmp_path):
    for attempt in (lambda: Screen().check_writable(tmp_path), lambda: Screen().write_file(tmp_path, "text")):
        with pytest.raises(NotWritable, match="Is a directory"):
            attempt()
