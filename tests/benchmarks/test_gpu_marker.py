"""The root conftest on a toy suite: tests marked gpu, with and without a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SUITE = """
import pytest


def test_plain():
    pass


@pytest.mark.skip(reason="may be")
def test_a_skip_without_the_mark():
    pass


@pytest.mark.gpu
def test_on_the_device():
    pass


@pytest.mark.gpu
def test_that_gives_up():
    pytest.skip("no such thing here")


@pytest.mark.gpu
@pytest.mark.skipif(True, reason="not today")
def test_skipped_by_mark():
    pass


@pytest.mark.gpu
@pytest.mark.xfail(reason="known", strict=True)
def test_known_to_fail():
    raise ValueError
"""
HEAD = 'import pytest\n\npytest.importorskip("a_package_that_is_not_here")\n'


@pytest.fixture
def suite(tmp_path):
    def run(device: bool, *words: str) -> str:
        text = CONFTEST.read_text().replace("return torch.cuda.is_available()", f"return {device}")
        assert f"return {device}" in text
        (tmp_path / "conftest.py").write_text(text)
        (tmp_path / "test_toy.py").write_text(SUITE)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    return run


def test_without_a_device_gpu_tests_are_left_out_with_one_line(suite):
    out = suite(False)
    assert "1 passed, 1 skipped, 4 deselected" in out
    assert "4 tests marked gpu were left out: this torch sees no CUDA device" in out


def test_with_a_device_a_skipped_gpu_test_is_a_failure(suite):
    out = suite(True, "-rf")
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed, 1 error" in out  # a mark skips in the setup
    assert "left out" not in out
    assert out.count("on a GPU machine a skip is a failure") >= 2
    assert "no such thing here" in out and "not today" in out


def test_with_a_device_a_gpu_file_that_skips_itself_is_a_failure(suite, tmp_path):
    (tmp_path / "test_toy_gpu.py").write_text(HEAD)
    assert "on a GPU machine a skip is a failure" in suite(True)
    assert "error" in suite(True)
    assert "error" not in suite(False).splitlines()[-1]
