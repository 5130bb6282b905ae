"""Kernel files loaded into this process."""

import os
import subprocess
import sys

import pytest
import torch

from autokernel.errors import KernelInvalid, UnknownName
from autokernel.install.kernel import load

DOUBLE = '''
import ctypes

from autokernel_loader import load

LANGUAGE = "cpp"
SOURCE = r"""
extern "C" void twice(const float* x, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = 2 * x[i];
}
"""
twice = load(SOURCE).twice
twice.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]


def launch(x, out):
    twice(x.data_ptr(), out.data_ptr(), x.numel())
'''


def test_a_kernel_file_is_built_and_runs_here():
    x, out = torch.randn(100), torch.empty(100)
    load(DOUBLE)(x, out)
    assert torch.equal(out, 2 * x)


def test_the_same_text_is_loaded_once():
    assert load(DOUBLE) is load(DOUBLE)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("def launch(:", KernelInvalid, "line 1"),
        ("def launch(x): pass", KernelInvalid, "LANGUAGE"),
        ('LANGUAGE = "fortran"', UnknownName, "fortran"),
    ],
)
def test_what_is_no_kernel_file_is_a_named_error(text, error, words):
    with pytest.raises(error, match=words):
        load(text)


TRITON = """
import triton
import triton.language as tl

LANGUAGE = "triton"


@triton.jit
def twice_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def launch(x, out):
    twice_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
"""


def test_a_triton_file_is_loaded_from_its_text_alone_and_runs_interpreted(tmp_path):
    """In a process of its own: whether Triton interprets is decided when it is first imported."""
    (tmp_path / "kernel.py").write_text(TRITON)
    code = """
import pathlib, torch
from autokernel.install.kernel import load
text = pathlib.Path("kernel.py").read_text()
x, out = torch.randn(100), torch.empty(100)
load(text)(x, out)
assert torch.equal(out, 2 * x)
print("right")
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "right", done.stderr


def test_a_triton_file_without_launch_is_refused_before_it_is_run():
    with pytest.raises(KernelInvalid, match="launch"):
        load('LANGUAGE = "triton"\nraise SystemExit\n')
