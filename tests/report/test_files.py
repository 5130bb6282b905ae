"""The files a report leaves: progress.png and use.py."""

import ast
import struct

import pytest

from autokernel.records import RunConfig
from autokernel.report import RunView, progress_png, use_text
from autokernel.report.progress import KEPT

PNG = b"\x89PNG\r\n\x1a\n"


def pixels(path):
    """All pixels as an array of height × width × 3, in 0..255."""
    from matplotlib.image import imread

    return (imread(path)[..., :3] * 255).round().astype(int)


def has_colour(picture, colour):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(picture - wanted).max(axis=-1) <= 2).sum())


def test_the_picture_shows_kept_experiments_in_green(view, tmp_path):
    progress_png(view, tmp_path / "progress.png")
    data = (tmp_path / "progress.png").read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert width > height > 500
    assert has_colour(pixels(tmp_path / "progress.png"), KEPT) > 500
    assert [path.name for path in tmp_path.iterdir()] == ["progress.png"]


def test_a_run_in_which_nothing_was_kept_has_no_green(make_trial, tmp_path):
    trials = (make_trial(1, "a", 0.9), make_trial(2, "a", correctness="FAIL", reason="wrong_values"))
    progress_png(RunView(trials=trials), tmp_path / "progress.png")
    # the legend names the colours that occur
    assert has_colour(pixels(tmp_path / "progress.png"), KEPT) < 500


def test_a_run_without_experiments_still_has_a_picture(tmp_path):
    progress_png(RunView(), tmp_path / "progress.png")
    assert (tmp_path / "progress.png").read_bytes().startswith(PNG)


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        progress_png(RunView(), tmp_path / "missing" / "progress.png")


def use_config(target):
    return RunConfig(target=target, name="a model", dtype="bfloat16", batch=2)


def test_use_py_of_a_file_target_holds_the_three_lines_and_names_the_file(tmp_path):
    target = str(tmp_path / "it's a model.py:build")
    text = use_text(tmp_path / "run 1", use_config(target))
    calls = {ast.unparse(node) for node in ast.parse(text).body}
    assert f"run = autokernel.Run.load({str(tmp_path / 'run 1')!r})" in calls
    assert "model = run.apply(model)" in calls
    assert f"model = load({target!r}, device='cpu', dtype='bfloat16', batch=2).model" in calls


def test_use_py_of_in_process_objects_is_a_function_of_the_model(tmp_path):
    text = use_text(tmp_path / "run", use_config("python"))
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == ["faster"]
    assert "load(" in ast.unparse(functions[0]) and "workload" not in text


def test_a_relative_target_is_made_absolute_so_that_use_py_runs_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert repr(str(tmp_path / "m.py:f")) in use_text(tmp_path / "run", use_config("m.py:f"))
