"""Checking and compiling Triton kernel files without a GPU: real Triton, real sandbox, real binaries."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autokernel.errors import MissingExtra, SandboxUnavailable, UnknownName, UnsupportedMode
from autokernel.languages import CompileFailure, get_language
from autokernel.languages.triton import fence, folders, standin, targets
from autokernel.languages.triton import language as language_module
from autokernel.languages.triton.language import Triton, shorten
from autokernel.records import Task, TensorSpec

HEAD = 'LANGUAGE = "triton"\nimport torch\nimport triton\nimport triton.language as tl\n\n\n'
SOFTMAX = (
    HEAD
    + """@triton.jit
def softmax(x, y, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * columns + at, v / tl.sum(v, 0), mask=at < columns)


def launch(x, y):
    softmax[(x.shape[0],)](x, y, x.shape[1], x.stride(0), BLOCK=triton.next_power_of_2(x.shape[1]))
"""
)
TWO = (
    HEAD
    + """@triton.jit
def totals(x, partial, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=0.0)
    tl.store(partial + tl.program_id(0), tl.sum(v, 0))


@triton.autotune([triton.Config({"PART": 256}), triton.Config({"PART": 512}, num_warps=8)], key=["columns"])
@triton.heuristics({"EVEN": lambda a: a["columns"] % a["PART"] == 0})
@triton.jit
def divide(x, partial, y, columns, EVEN: tl.constexpr, PART: tl.constexpr):
    at = tl.program_id(1) * PART + tl.arange(0, PART)
    total = tl.load(partial + tl.program_id(0))
    v = tl.load(x + tl.program_id(0) * columns + at, mask=EVEN or at < columns)
    tl.store(y + tl.program_id(0) * columns + at, v / total, mask=EVEN or at < columns)


def launch(x, y):
    rows, columns = x.shape
    assert x.is_cuda and torch.cuda.get_device_properties(x.device).multi_processor_count > 1
    partial = torch.empty(rows, dtype=torch.float32, device=x.device)
    side = torch.cuda.Stream()
    with torch.cuda.device(x.device), torch.cuda.stream(side):
        totals[(rows,)](x.contiguous(), partial, columns, BLOCK=triton.next_power_of_2(columns))
    torch.cuda.current_stream().wait_stream(side)
    divide[lambda m: (rows, triton.cdiv(columns, m["PART"]))](x, partial, y[:, 0:], columns)
"""
)


def spec(name, shape=(64, 1024), stride=None, offset=0, dtype="float32"):
    return TensorSpec(name=name, dtype=dtype, shape=shape, stride=stride or (shape[1], 1), offset=offset)


def task(shape=(64, 1024), offset=0, stride=None):
    return Task(
        id="01-softmax",
        title="softmax",
        fingerprint="f",
        shape_key="k",
        device_class="cuda",
        inputs=(spec("x", shape, stride, offset),),
        outputs=(spec("y", shape),),
    )


@pytest.fixture(scope="module")
def triton_language():
    with Triton("cuda:90", deadline=60.0, parallel=4) as made:
        yield made


def failure(language, source, **options):
    with pytest.raises(CompileFailure) as caught:
        language.compile(source, task(), **options)
    return caught.value.log


def texts(artifact, suffix):
    return [path.read_text() for path in sorted(artifact.directory.glob(f"*/*{suffix}"))]


# --- check


def test_a_good_file_has_no_findings():
    assert Triton().check(SOFTMAX) == () == Triton().check(TWO)


@pytest.mark.parametrize(
    "source, line, words",
    [
        (SOFTMAX + "def broken(:\n", 18, "syntax error"),
        (SOFTMAX.replace("def launch", "def start"), 1, "`launch"),
        (SOFTMAX.replace('"triton"', '"cpp"', 1), 1, "LANGUAGE is 'cpp'"),
        (SOFTMAX.replace("LANGUAGE", "TONGUE"), 1, "LANGUAGE"),
        (SOFTMAX.replace("@triton.jit", ""), 1, "@triton.jit"),
        ("\x00", 1, ""),
    ],
)
def test_what_can_not_be_a_triton_kernel_is_fatal_with_its_line(source, line, words):
    fatal = [finding for finding in Triton().check(source) if finding.fatal]
    assert fatal and fatal[0].line == line and words in fatal[0].message


def test_unusual_imports_and_kernels_that_nobody_uses_are_worth_a_word_and_no_more():
    unused = "import socket\n" + SOFTMAX + "\n\n@triton.jit\ndef decoy(x):\n    tl.store(x, 0.0)\n"
    found = Triton().check(unused)
    assert [f.message for f in found] == ["the kernel decoy is never used", "imports socket"]
    assert not any(f.fatal for f in found)


def test_the_language_is_found_by_its_name_and_is_one_for_the_process():
    assert get_language("triton") is get_language("triton")
    with pytest.raises(UnknownName, match="cpp, triton"):
        get_language("fortran")


# --- compile


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
def test_kernels_compile_for_real_chips_with_their_resources(triton_language, target):
    softmax = triton_language.compile(SOFTMAX, task(), target)
    two = triton_language.compile(TWO, task(), target)
    for artifact, kernels in ((softmax, 1), (two, 3)):  # one and two configurations of a second
        binaries = [p for p in artifact.directory.glob("*/*") if p.suffix in (".cubin", ".hsaco")]
        assert len(binaries) == kernels
        assert 4 <= artifact.resources.registers <= 255 and artifact.resources.spills == 0
        assert 0 < artifact.resources.shared_bytes < 65536
        assert artifact.resources.code_bytes == sum(p.stat().st_size for p in binaries)
        assert artifact.log == ""


def test_registers_are_those_that_nvidias_own_tool_reports(triton_language):
    artifact = triton_language.compile(SOFTMAX, task())
    (cubin,) = artifact.directory.glob("*/*.cubin")
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert artifact.resources.registers == int(re.search(r"REG:(\d+)", said)[1])


def test_spills_are_counted_in_bytes(triton_language):
    pressed = SOFTMAX.replace("BLOCK=triton", "num_warps=1, maxnreg=24, BLOCK=triton")
    assert triton_language.compile(pressed, task()).resources.spills > 0


def test_loads_are_vectorised_exactly_when_the_task_allows_it(triton_language):
    (aligned,) = texts(triton_language.compile(SOFTMAX, task()), ".ptx")
    (shifted,) = texts(triton_language.compile(SOFTMAX, task(offset=1)), ".ptx")
    (odd,) = texts(triton_language.compile(SOFTMAX, task(stride=(1031, 1))), ".ptx")
    assert "ld.global.v4" in aligned
    assert "ld.global.v" not in shifted and "ld.global.v" not in odd


def test_errors_are_tritons_own_words_with_the_line(triton_language):
    log = failure(triton_language, SOFTMAX.replace("tl.exp(", "tl.expo("))
    assert "CompilationError" in log and "no attribute 'expo'" in log and "tl.expo(v" in log and "line 17" in log


def test_what_does_not_fit_into_the_chip_is_a_compile_failure(triton_language):
    heavy = (
        HEAD
        + """@triton.jit
def product(x, y, M: tl.constexpr, K: tl.constexpr):
    left = tl.load(x + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]).to(tl.float16)
    right = tl.load(x + tl.arange(0, K)[:, None] * M + tl.arange(0, M)[None, :]).to(tl.float16)
    tl.store(y + tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :], tl.dot(left, right))


def launch(x, y):
    product[(1,)](x, y, M=128, K=512, num_warps=8)
"""
    )
    words = r"out of resource: shared memory, Required: \d+, Hardware limit: 232448"
    assert re.search(words, failure(triton_language, heavy))


def test_errors_of_the_host_code_name_the_line(triton_language):
    log = failure(triton_language, SOFTMAX.replace("    softmax[", "    x.no_such_thing()\n    softmax["))
    assert "no_such_thing" in log and "line 17" in log
    assert "SystemExit" in failure(triton_language, SOFTMAX + "\nraise SystemExit\n")


def test_a_launch_that_reads_values_is_left_to_the_gpu_and_says_so(triton_language):
    reads = SOFTMAX.replace("    softmax[", "    if x.sum().item() > 0:\n        y.zero_()\n    softmax[")
    artifact = triton_language.compile(reads, task())
    assert "without a GPU" in artifact.log and not list(artifact.directory.glob("*/*.cubin"))
    assert artifact.resources.registers is None


def test_a_launch_without_kernels_is_noted(triton_language):
    source = re.sub(r"    softmax\[.*", "    y.copy_(torch.softmax(x, -1))", SOFTMAX)
    assert "no kernel was compiled" in triton_language.compile(source, task()).log


def test_other_sizes_are_compiled_into_the_same_folder(triton_language):
    artifact = triton_language.compile(SOFTMAX, task(), also=(task((63, 1023)), task(offset=1)))
    assert len(texts(artifact, ".ptx")) == 3 and artifact.log == ""


def test_a_compilation_is_remembered(triton_language):
    first = triton_language.compile(SOFTMAX, task())
    assert triton_language.compile(SOFTMAX, task()) is first
    assert triton_language.compile(SOFTMAX, task((64, 2048))).directory != first.directory
    assert triton_language.compile(SOFTMAX, task(), "cuda:80").directory != first.directory


def test_four_sources_are_compiled_side_by_side(triton_language):
    stamp = (
        "\nimport time\nbegan = time.monotonic()\ntime.sleep(1.5)\nraise ValueError(f'{began} {time.monotonic()}')\n"
    )
    sources = [f"{SOFTMAX}{stamp}# {i}\n" for i in range(4)]
    triton_language.prefetch(sources, task())
    spans = [tuple(map(float, failure(triton_language, s).rpartition("ValueError: ")[2].split())) for s in sources]
    assert max(began for began, _ in spans) < min(ended for _, ended in spans)


def test_unusable_requests_are_named_errors(triton_language, monkeypatch):
    with pytest.raises(UnsupportedMode, match="task"):
        triton_language.compile(SOFTMAX)
    with pytest.raises(UnknownName, match="cuda:90"):
        triton_language.compile(SOFTMAX, task(), "cuda:0")
    monkeypatch.setattr(language_module.util, "find_spec", lambda name: None if name == "triton" else object())
    with pytest.raises(MissingExtra, match="pip install 'triton'"):
        triton_language.compile(SOFTMAX + "# new\n", task())


def test_a_missing_bubblewrap_is_an_error_only_when_it_was_asked_for(monkeypatch):
    monkeypatch.setattr(fence, "bubblewrap_problem", lambda: "it is not there")
    assert Triton(isolation="auto").isolation() == "plain"
    with pytest.raises(SandboxUnavailable, match="it is not there"):
        Triton(isolation="bubblewrap").isolation()


# --- what the judged child finds

_SECOND = """
import json, sys
import torch, triton
from triton import knobs
from autokernel.judge.child import _execute
from autokernel.languages.triton import standin, targets

hits = []
knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
standin.install(targets.chip("cuda:90"), None)
torch.cuda.get_device_properties("cuda")
source, offset = sys.stdin.read(), int(sys.argv[1])
launch = _execute(source).launch
base = torch.zeros(64 * 1024 + offset)
launch(base[offset:].view(64, 1024), torch.zeros(64, 1024))
print(json.dumps(hits))
"""


def second_process(cache, source, offset=0):
    """Whether each kernel was found compiled by a process of its own, on real memory."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", _SECOND, str(offset)], input=source, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_another_process_finds_the_kernels_compiled_where_they_are_and_in_a_copy(triton_language, tmp_path):
    artifact = triton_language.compile(SOFTMAX, task())
    before = contents(artifact.directory)
    assert second_process(artifact.directory, SOFTMAX) == [True]
    assert contents(artifact.directory) == before
    folders.place(artifact.directory, tmp_path / "partial", known_as=tmp_path / "copy")
    (tmp_path / "partial").rename(tmp_path / "copy")
    assert second_process(tmp_path / "copy", SOFTMAX) == [True]
    assert str(artifact.directory) not in "".join(texts(artifact, "nothing"))
    assert all(str(tmp_path / "copy") in p.read_text() for p in (tmp_path / "copy").glob("*/__grp__*"))


def test_another_alignment_is_another_kernel(triton_language, tmp_path):
    folders.place(triton_language.compile(SOFTMAX, task()).directory, tmp_path / "copy")
    assert second_process(tmp_path / "copy", SOFTMAX, offset=1) == [False]


def test_launchers_are_built_ahead_where_this_triton_has_any(triton_language):
    nvidia = pytest.importorskip("triton.backends.nvidia.driver")
    names = {path.name.partition(".")[0] for path in triton_language.compile(SOFTMAX, task()).directory.glob("*/*.so")}
    wanted = {"cuda_utils", "__triton_launcher"} if hasattr(nvidia, "compile_module_from_src") else set()
    assert names == wanted


@pytest.mark.parametrize("flag", ["--as-needed", "--no-as-needed"])
def test_what_is_linked_ahead_asks_for_the_real_libcuda_where_it_is_loaded(tmp_path, flag):
    assert standin.empty_libcuda(str(tmp_path))
    (tmp_path / "user.c").write_text("int cuGetErrorString(); int use() { return cuGetErrorString(); }\n")
    build = ["gcc", "-shared", "-fPIC", f"-Wl,{flag}", "user.c", "-o", "user.so", "-L.", "-l:libcuda.so.1"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert b"libcuda.so.1\0" in (tmp_path / "user.so").read_bytes()


# --- the sandbox


def processes(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize("isolation", ["bubblewrap", "plain"])
def test_python_without_end_is_killed_with_its_children_and_closing_leaves_nothing(isolation):
    if isolation == "bubblewrap" and fence.bubblewrap_problem():
        pytest.skip(f"needs bubblewrap: {fence.bubblewrap_problem()}")
    mark = f"3{os.getpid()}.25"
    endless = f"""
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "{mark}"])
while True:
    pass
"""
    with Triton("cuda:90", deadline=2.0, parallel=2, isolation=isolation) as language:
        with pytest.raises(CompileFailure, match="more than 2 s"):
            language.compile(SOFTMAX + endless, task())
        assert processes(mark) == []
        language.deadline = 60.0
        directory = language.compile(SOFTMAX, task()).directory  # the next is not disturbed
    root = directory.parents[1]
    assert not root.exists() and processes(str(root)) == []


def test_a_worker_that_dies_is_a_compile_failure(triton_language):
    assert "without a result" in failure(triton_language, SOFTMAX + "\nimport os\nos._exit(0)\n")


_PROBES = """
import os, socket
told = []
def attempt(name, act):
    try:
        told.append(f"{name}: {act()!r}")
    except OSError as error:
        told.append(f"{name}: refused")
here = os.getcwd()
work = os.path.dirname(here)
attempt("root", lambda: open("/autokernel-probe", "w"))
attempt("tmp", lambda: open("/tmp/autokernel-probe", "w"))
attempt("work", lambda: [name for name in os.listdir(work) if name != os.path.basename(here)])
attempt("done", lambda: os.listdir(os.path.dirname(work) + "/done"))
attempt("torch", lambda: open(torch.__file__, "a"))
attempt("home", lambda: os.listdir(HOME))
attempt("network", lambda: socket.create_connection(("192.0.2.1", 80), timeout=2))
attempt("own", lambda: open("mine", "w").write("here"))
raise ValueError(" | ".join(told))
"""


def test_a_file_can_write_to_its_own_folder_only_and_has_no_network(triton_language, tmp_path):
    if fence.bubblewrap_problem():
        pytest.skip(f"needs bubblewrap: {fence.bubblewrap_problem()}")
    triton_language.compile(SOFTMAX, task())
    log = failure(triton_language, SOFTMAX + _PROBES.replace("HOME", repr(str(tmp_path))))
    for name in ("root", "tmp", "done", "torch", "home", "network"):
        assert f"{name}: refused" in log, log
    assert "own: 4" in log
    assert "work: []" in log or not triton_language._pool.secluded


def test_what_a_worker_leaves_is_taken_over_with_care(tmp_path):
    kernel = tmp_path / "cache" / "KEY"
    kernel.mkdir(parents=True)
    (kernel / "k.cubin").write_bytes(b"binary")
    (kernel / "k.ttir").write_text("not needed")
    (kernel / "link.cubin").symlink_to("/etc/hostname")
    os.mkfifo(kernel / "pipe.cubin")
    (kernel / "__grp__k.json").write_text(json.dumps({"child_paths": {"k.cubin": "/elsewhere", "../x": "/y"}}))
    (kernel / "__grp__bad.json").write_text("[" * 100_000)
    folders.place(tmp_path / "cache", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out" / "KEY").iterdir()) == [
        "__grp__bad.json",
        "__grp__k.json",
        "k.cubin",
    ]
    group = json.loads((tmp_path / "out" / "KEY" / "__grp__k.json").read_text())
    assert group == {"child_paths": {"k.cubin": str(tmp_path / "out" / "KEY" / "k.cubin")}}
    (kernel / "large.cubin").touch()
    os.truncate(kernel / "large.cubin", folders.FILE_BYTES + 1)
    with pytest.raises(folders.TooLarge):
        folders.place(tmp_path / "cache", tmp_path / "again")


def test_long_words_are_shortened_in_the_middle():
    log = shorten("begin " + "x" * 100_000 + " end")
    assert len(log) < 5000 and log.startswith("begin") and log.endswith("end")


def test_compiling_starts_no_cuda_and_imports_no_triton_here():
    code = (
        "import sys\nfrom autokernel.languages import get_language\n"
        "get_language('triton').check('')\nassert not {'torch', 'triton'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_targets_have_capabilities_and_warps():
    assert targets.chip("cuda:90").capability == (9, 0) and targets.chip("cuda:100").capability == (10, 0)
    assert targets.chip("hip:gfx942").warp == 64 and targets.chip("hip:gfx942").capability == (9, 4)
