"""The Triton texts of benchmarks and cheaters: right in the interpreter, compiled for a real chip without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from autokernel.languages import get_language
from autokernel.task.file import from_file
from autokernel.testing.cheaters import CUDA_CHEATS, CUDA_ODD, reference
from autokernel.testing.cheaters.cuda import memory, process

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OWN_KERNELS = {case.name: case for case in (*process.CASES, *memory.CASES)}


@pytest.fixture(scope="module")
def ops():
    spec = importlib.util.spec_from_file_location("benchmark_ops", BENCHMARKS / "ops.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_ops"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def triton():
    language = get_language("triton")
    yield language
    language.close()


@pytest.fixture(scope="module")
def tasks():
    return {name: from_file(reference(name)).task for name in {case.task for case in (*CUDA_CHEATS, *CUDA_ODD)}}


def test_honest_kernels_and_those_of_the_benchmarks_are_right_in_the_interpreter():
    script = Path(__file__).with_name("interpreted_texts.py")
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert len(found["ran"]) > 20


def test_the_benchmarks_kernels_compile_for_hopper(ops, triton, tmp_path):
    small = [ops.softmax(16, 4096), ops.rms_norm(16, 4096), ops.residual_norm(16, 2048), ops.add(16, 2048)]
    small += [ops.matmul(256, "bfloat16"), ops.matmul(256, "float32")]
    paths = [tmp_path / f"{op.name}.py" for op in small]
    for op, path in zip(small, paths, strict=True):
        path.write_text(op.reference)
        artifact = triton.compile(op.kernel, from_file(path).task, "cuda:90")
        assert artifact.resources.registers, op.name
        assert not artifact.resources.spills, op.name
        assert any(op.kernel_name in file.name for file in artifact.directory.rglob("*.cubin"))


@pytest.mark.parametrize("name", OWN_KERNELS)
def test_cheats_with_kernels_of_their_own_compile_for_hopper(triton, tasks, name):
    case = OWN_KERNELS[name]
    assert not [finding for finding in triton.check(case.source) if finding.fatal]
    artifact = triton.compile(case.source, tasks[case.task], "cuda:90")
    assert artifact.resources.registers, artifact.log


def test_cheats_on_the_gpu_have_a_twin_that_differs_and_names_of_their_own():
    assert all(case.twin is not None and case.twin != case.source for case in CUDA_CHEATS)
    assert len({case.name for case in (*CUDA_CHEATS, *CUDA_ODD)}) == len(CUDA_CHEATS) + len(CUDA_ODD)
    assert all(case.device == "cuda" and 'LANGUAGE = "triton"' in case.source for case in (*CUDA_CHEATS, *CUDA_ODD))
