"""Kernel files loaded into this process."""

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
