"""Where compiled kernels are kept and with what they are built: the settings' say, in this process too."""

import ctypes
import stat

import pytest

from autokernel.languages.cpp import autokernel_loader as loader
from autokernel.languages.cpp import compiler
from autokernel.languages.cpp.language import Cpp

TEXT = 'extern "C" int seven() { return 7; }\n'
KERNEL = f'LANGUAGE = "cpp"\nSOURCE = r"""{TEXT}"""\n\n\ndef launch(x, y):\n    pass\n'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "loaders"))
    for name in ("CXX", "AUTOKERNEL_CXX", "AUTOKERNEL_CPP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loader, "BUILT", {})
    return tmp_path / "cache"


def test_a_kernel_is_kept_in_the_settings_cache_and_found_there_when_it_is_loaded(cache, tmp_path, monkeypatch):
    directory = Cpp().compile(KERNEL).directory
    assert directory.is_relative_to(cache / "cpp")
    monkeypatch.setenv("PATH", "/nowhere")  # nothing can be built now
    assert loader.load(TEXT).seven() == 7
    assert not (tmp_path / "loaders").exists()


def test_the_settings_compiler_is_used(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.write_text('#!/bin/sh\nexec g++ "$@"\n')
    mine.chmod(mine.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("AUTOKERNEL_CXX", str(mine))
    assert compiler.find() == str(mine)


@pytest.mark.parametrize("left", [0, 10, 64, 4096, -1])
def test_a_library_that_was_cut_short_is_built_again(left):
    (library,) = Cpp().compile(KERNEL).directory.glob("*.so")
    whole = library.read_bytes()
    assert loader.is_whole(str(library))
    library.write_bytes(whole[:left])
    assert not loader.is_whole(str(library))
    (again,) = Cpp().compile(KERNEL).directory.glob("*.so")
    assert loader.is_whole(str(again)) and again == library
    assert ctypes.CDLL(str(again)).seven() == 7
