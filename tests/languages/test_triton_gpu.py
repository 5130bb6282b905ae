"""On a GPU: what was compiled without it is found compiled by a process that uses it, launchers included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autokernel.languages.triton import folders, targets
from autokernel.languages.triton.language import Triton
from autokernel.records import Task, TensorSpec

pytestmark = pytest.mark.gpu

SOURCE = """LANGUAGE = "triton"
import torch
import triton
import triton.language as tl


@triton.jit
def totals(x, partial, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(partial + tl.program_id(0), tl.sum(v, 0))


@triton.autotune([triton.Config({"PART": 256}), triton.Config({"PART": 512}, num_warps=8)], key=["columns"])
@triton.jit
def divide(x, partial, y, rows, columns, SLOTS: tl.constexpr, PART: tl.constexpr):
    for row in range(tl.program_id(0), rows, SLOTS):
        at = tl.program_id(1) * PART + tl.arange(0, PART)
        v = tl.load(x + row * columns + at, mask=at < columns).to(tl.float32)
        tl.store(y + row * columns + at, v / tl.load(partial + row), mask=at < columns)


def launch(x, y):
    rows, columns = x.shape
    slots = torch.cuda.get_device_properties(x.device).multi_processor_count
    partial = torch.empty(rows, dtype=torch.float32, device=x.device)
    totals[(rows,)](x, partial, columns, BLOCK=triton.next_power_of_2(columns))
    divide[lambda m: (slots, triton.cdiv(columns, m["PART"]))](x, partial, y, rows, columns, SLOTS=slots)
"""
# the GPU's process; what it runs is ours, so that it may answer in its own words
LAUNCH = """
import json, sys
import torch, triton
from triton import knobs
from triton.compiler import CompiledKernel
from autokernel.judge.child import _execute

hits, registers = [], []
knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
initialise = CompiledKernel._init_handles
def noted(self):
    initialise(self)
    registers.append(self.n_regs)
CompiledKernel._init_handles = noted
source, offset = sys.stdin.read(), int(sys.argv[1])
x = torch.rand(64 * 1024 + offset, device="cuda", dtype=torch.bfloat16)[offset:].view(64, 1024)
y = torch.empty_like(x, memory_format=torch.contiguous_format)
_execute(source).launch(x, y)
error = (y.double() - x.double() / x.double().sum(1, keepdim=True)).abs().max().item()
print(json.dumps({"hits": hits, "registers": max(registers), "error": error}))
"""


def task(offset):
    def spec(name, offset):
        return TensorSpec(name=name, dtype="bfloat16", shape=(64, 1024), stride=(1024, 1), offset=offset)

    return Task(
        id="01-share",
        title="share",
        fingerprint="f",
        shape_key="k",
        device_class="cuda",
        inputs=(spec("x", offset),),
        outputs=(spec("y", 0),),
    )


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("offset", [0, 1])
def test_the_gpu_process_compiles_nothing_and_builds_no_launcher(tmp_path, offset):
    cache = tmp_path / "cache"
    with Triton() as language:
        artifact = language.compile(SOURCE, task(offset))
        folders.place(artifact.directory, cache)
    assert artifact.log == ""
    before = contents(cache)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(offset)],
        input=SOURCE,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["hits"] == [True] * 3
    assert contents(cache) == before  # also by time: a launcher that can't be loaded would be built anew
    assert "could not be loaded" not in done.stderr
    assert told["registers"] == artifact.resources.registers
    assert told["error"] < 1e-4


def test_this_machines_chip_is_the_one_that_torch_sees_and_asking_makes_no_context():
    code = (
        "from autokernel.languages.triton import targets\nchip = targets.this_chip(0)\n"
        "import sys, os\nassert 'torch' not in sys.modules\n"
        "assert not any('libcuda.so' in line for line in open('/proc/self/maps'))\n"
        "import torch\np = torch.cuda.get_device_properties(0)\n"
        "assert chip.capability == torch.cuda.get_device_capability(0) and chip.name == p.name, chip\n"
        "assert chip.multiprocessors == p.multi_processor_count and chip.total_memory == p.total_memory, chip\n"
        "assert chip.shared_bytes == p.shared_memory_per_block_optin and chip.l2_bytes == p.L2_cache_size, chip\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert targets.resolve(None).target == targets.target_of(0)


def test_the_compiling_processes_hold_no_gpu(tmp_path):
    with Triton() as language:
        language.compile(SOURCE, task(0))
        pool = language._pool
        assert pool is not None and pool._process is not None
        tree = [pool._process.pid, *_below(pool._process.pid)]
        opened = [os.readlink(fd) for pid in tree for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [path for path in opened if path.startswith("/dev/nvidia")]


def _below(root):
    from autokernel.languages.triton.zygote import descendants

    return descendants(root)
