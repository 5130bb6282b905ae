"""What one call runs, by name."""

import ctypes

import pytest
import torch

from autokernel.judge.child_listing import listed
from autokernel.judge.protocol import TEXT_BYTES
from autokernel.languages.cpp.autokernel_loader import load

SOURCE = 'extern "C" void twice(float* x, long n) { for (long i = 0; i < n; ++i) x[i] *= 2; }'


@pytest.fixture
def twice():
    function = load(SOURCE).twice
    function.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return function


def test_functions_of_a_library_are_listed_when_they_are_called_and_still_do_their_work(twice):
    x = torch.ones(4)
    assert listed(lambda: twice(x.data_ptr(), 4)) == "cpp.twice"
    assert listed(lambda: None) == ""
    twice(x.data_ptr(), 4)
    assert x.tolist() == [4.0] * 4


def test_operators_are_listed_once_each_and_views_are_not():
    x = torch.ones(4, 4)
    assert listed(lambda: torch.mul(x.t() + 1, x.view(16)[:4] + 1)) == "aten.add aten.mul"


def test_what_fails_leaves_nothing_behind(twice):
    with pytest.raises(ctypes.ArgumentError):
        listed(lambda: twice(1.5, 4))
    assert "__call__" not in vars(type(twice))


def test_more_names_than_a_reply_holds_are_cut_between_two_of_them(monkeypatch):
    names = [f"cpp.function_{number}" for number in range(300)]
    monkeypatch.setattr("autokernel.judge.child_listing._native", lambda note: Noting(note, names))
    text = listed(lambda: None)
    assert len(text) <= TEXT_BYTES and text.split() == names[: len(text.split())]


class Noting:
    def __init__(self, note, names):
        self.note, self.names = note, names

    def __enter__(self):
        for name in self.names:
            self.note(name)

    def __exit__(self, *words):
        pass
