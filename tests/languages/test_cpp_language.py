"""Checking, compiling and loading C++ kernel files, with the machine's real compiler and real sandbox."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from autokernel.errors import NoCompiler, UnknownName
from autokernel.languages import CompileFailure, get_language
from autokernel.languages.cpp import autokernel_loader as loader
from autokernel.languages.cpp import compiler
from autokernel.languages.cpp.language import LOADER_DIRECTORY, Cpp, code_bytes, shorten
from autokernel.languages.cpp.source import read_kernel

DOUBLE = """
#include <cstdint>
extern "C" int launch(const float* __restrict x, float* __restrict y, int64_t n) {
    for (int64_t j = 0; j < n; ++j) y[j] = 2 * x[j];
    return 0;
}
"""


def kernel(text=DOUBLE, launch="def launch(x, y):\n    pass\n", language='LANGUAGE = "cpp"'):
    return f'{language}\nSOURCE = r"""{text}"""\n\n\n{launch}'


@pytest.fixture
def cpp(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOKERNEL_CPP_CACHE", raising=False)
    return Cpp()


# --- check


def test_a_good_file_has_no_findings():
    assert Cpp().check(kernel()) == ()


@pytest.mark.parametrize(
    "source, line, words",
    [
        (kernel(launch="def launch(x:\n"), 11, "syntax error"),
        (kernel(launch="def start(x):\n    pass\n"), 1, "`launch"),
        (kernel(language='LANGUAGE = "triton"'), 1, "LANGUAGE is 'triton'"),
        ('LANGUAGE = "cpp"\ndef launch(x): pass\n', 1, "SOURCE"),
        ('LANGUAGE = "cpp"\nSOURCE = open("x").read()\ndef launch(x): pass\n', 2, "SOURCE is not a literal"),
        ("\x00", 1, ""),
    ],
)
def test_what_can_not_be_a_kernel_is_fatal_with_its_line(source, line, words):
    fatal = [finding for finding in Cpp().check(source) if finding.fatal]
    assert fatal and fatal[0].line == line and words in fatal[0].message


def test_an_unusual_import_is_worth_a_word_and_no_more():
    (finding,) = Cpp().check("import socket\n" + kernel())
    assert (finding.line, finding.fatal) == (1, False) and "socket" in finding.message


def test_nothing_of_a_file_runs_while_it_is_read(tmp_path):
    mark = tmp_path / "ran"
    read_kernel(kernel() + f"open({str(mark)!r}, 'w').close()\n")
    assert not mark.exists()


# --- compile


def test_a_library_is_built_once_and_named_by_its_text(cpp):
    first = cpp.compile(kernel())
    (library,) = first.directory.iterdir()
    assert library.name == loader.source_hash(DOUBLE) + ".so" == first.source_sha256 + ".so"
    assert 0 < first.resources.code_bytes < library.stat().st_size
    before = library.stat().st_mtime_ns
    again = cpp.compile(kernel(launch="def launch(x, y):\n    return None\n"))
    assert again.directory == first.directory and library.stat().st_mtime_ns == before


def test_another_text_or_other_flags_get_another_folder(cpp, monkeypatch):
    first = cpp.compile(kernel())
    assert cpp.compile(kernel(DOUBLE.replace("2 *", "3 *"))).directory != first.directory
    monkeypatch.setattr(loader, "FLAGS", (*loader.FLAGS, "-DOTHER"))
    assert cpp.compile(kernel()).directory != first.directory


def test_errors_are_the_compilers_own_words_shortened(cpp):
    with pytest.raises(CompileFailure) as caught:
        cpp.compile(kernel(DOUBLE.replace("n; ++j", "undeclared; ++j")))
    assert (
        "undeclared" in caught.value.log
        and "was not declared" in caught.value.log
        and "kernel.cpp:4" in caught.value.log
    )
    assert not list(Path(loader.cache_folder()).rglob("*.so"))
    assert len(shorten("error: no\n" * 5000)) < 5000


def test_a_compilation_without_end_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    endless = "template <int n> struct A { static constexpr int v = A<n - 1>::v + A<n - 2>::v * sizeof(A<n + 1>); };\n"
    bomb = "#define X2(a) a a a a a a a a\n#define X3(a) X2(X2(X2(a)))\nint v = 0 X3(X3(X3(+ 1)));\n"
    began = time.monotonic()
    with pytest.raises(CompileFailure, match="more than"):
        Cpp(deadline=1.5).compile(kernel(endless + bomb))
    assert time.monotonic() - began < 15


def test_a_compilation_in_the_sandbox_sees_no_files_of_the_user(cpp, tmp_path):
    if not compiler.isolated(compiler.find()):
        pytest.skip("bubblewrap doesn't work here; the compiler then runs plainly, and says so")
    secret = Path.home() / f".autokernel-test-{os.getpid()}"
    secret.write_text("int secret = 1234;\n")
    try:
        for path in (secret, "/etc/passwd"):
            for text in (f'#include "{path}"\n', f'__asm__(".incbin \\"{path}\\"");\n'):
                with pytest.raises(CompileFailure, match=r"No such file|file not found"):
                    cpp.compile(kernel(text + DOUBLE))
    finally:
        secret.unlink()


def test_a_compilation_has_no_environment_of_the_user(cpp, monkeypatch, tmp_path):
    wrapper = tmp_path / "telltale"
    wrapper.write_text('#!/bin/sh\ncase "$*" in *kernel.cpp*) env; exit 1;; esac\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("SECRET_TOKEN", "very-secret-words")
    with pytest.raises(CompileFailure) as caught:
        cpp.compile(kernel())
    assert "PATH=" in caught.value.log and "very-secret-words" not in caught.value.log


def test_without_a_compiler_the_error_names_the_remedy(cpp, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompiler, match=r"g\+\+, c\+\+, clang\+\+(.|\n)*Install"):
        cpp.compile(kernel())


def test_cxx_chooses_the_compiler(cpp, monkeypatch, tmp_path):
    wrapper, log = tmp_path / "mine", tmp_path / "log"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))
    assert compiler.find() == str(wrapper)
    cpp.compile(kernel())
    assert "--version" in log.read_text()


def test_code_bytes_counts_executable_segments_only():
    assert code_bytes(b"MZ not an ELF file") is None


# --- load


def standalone(tmp_path, body, **environment):
    """Run a script beside a copy of the loader, as an export would have it, in a process of its own."""
    shutil.copy(LOADER_DIRECTORY / "autokernel_loader.py", tmp_path)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    env = {k: v for k, v in os.environ.items() if not k.startswith("AUTOKERNEL")}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "own"), **environment}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loader_standing_alone_builds_and_loads(tmp_path):
    body = f"""
        import ctypes
        from autokernel_loader import load
        SOURCE = {DOUBLE!r}
        x, y = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()
        load(SOURCE).launch(x, y, ctypes.c_int64(3))
        print(list(y))
    """
    assert standalone(tmp_path, body) == "[2.0, 4.0, 6.0]\n"
    assert len(list((tmp_path / "own").rglob("*.so"))) == 1


def test_the_loader_takes_what_was_built_and_needs_no_compiler(tmp_path, cpp):
    artifact = cpp.compile(kernel())
    body = f"""
        from autokernel_loader import load
        print(load({DOUBLE!r})._name)
    """
    found = standalone(tmp_path, body, AUTOKERNEL_CPP_CACHE=str(artifact.directory), PATH="/nowhere")
    assert found.strip() == str(artifact.directory / f"{artifact.source_sha256}.so")


def test_a_kernel_uses_the_threads_that_torch_has(tmp_path):
    body = """
        import os
        import torch
        from autokernel_loader import load
        torch.set_num_threads(2)
        torch.randn(1 << 22).exp_()
        before = len(os.listdir("/proc/self/task"))
        library = load('''
            #include <omp.h>
            extern "C" int launch() {
                int seen = 0;
                #pragma omp parallel num_threads(2) reduction(+ : seen)
                seen += 1;
                return seen;
            }
        ''')
        assert library.launch() == 2
        runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line or "libiomp" in line}
        print(len(os.listdir("/proc/self/task")) - before, len(runtimes))
    """
    assert standalone(tmp_path, body) == "0 1\n"


def test_arranged_copies_only_where_elements_lie_elsewhere():
    import torch

    x = torch.randn(4, 6)
    assert loader.arranged(x, (6, 1)) is x
    assert loader.arranged(x[:1], (99, 1)).data_ptr() == x.data_ptr()  # the stride of an extent of 1 says nothing
    moved = loader.arranged(x.t(), (4, 1))
    assert moved.stride() == (4, 1) and torch.equal(moved, x.t())


def test_languages_are_found_by_name():
    assert get_language("cpp").name == "cpp"
    with pytest.raises(UnknownName, match="cpp"):
        get_language("cobol")
