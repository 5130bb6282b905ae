"""Running a Triton kernel file in Triton's interpreter: on the CPU, slowly, with real values.

Each run has a process of its own: the interpreter is chosen by the environment when a kernel is defined, for good.
"""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

_FILE_NAME = "<kernel.py>"


class InterpreterFailure(Exception):
    """`launch` raised, or took longer than its deadline; `log` is what the process said last."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


def run_interpreted(source: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], deadline: float = 60.0) -> None:
    """Call `launch(*inputs, *outputs)` of a kernel file on CPU tensors; the outputs are filled in place.

    Shapes, strides and storage offsets are kept. Inputs are not changed, even if `launch` changes its copies.
    `deadline` in seconds, the start of the process (2–4 s) included. torch.cuda answers as on an H200, for host
    code that asks for the number of multiprocessors. Raises `InterpreterFailure`.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="autokernel-interpreter-") as folder:
        path = Path(folder)
        (path / "kernel.py").write_text(source, encoding="utf-8")
        torch.save([list(inputs), list(outputs)], path / "tensors.pt")
        command = [sys.executable, "-c", f"from {__name__} import main; main({folder!r})"]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=deadline,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InterpreterFailure(f"the interpreter took more than {deadline:g} s") from error
        if done.returncode:
            raise InterpreterFailure(done.stderr[-4000:].strip() or f"exit status {done.returncode}")
        for output, made in zip(outputs, torch.load(path / "outputs.pt", weights_only=True), strict=True):
            output.copy_(made)


def main(folder: str) -> None:
    """The process's side."""
    import torch

    from autokernel.languages.triton.standin import answer_torch_cuda
    from autokernel.languages.triton.targets import chip

    path = Path(folder)
    inputs, outputs = torch.load(path / "tensors.pt", weights_only=True)
    answer_torch_cuda(chip("cuda:90"))
    source = (path / "kernel.py").read_text(encoding="utf-8")
    module = types.ModuleType("kernel")
    module.__file__ = _FILE_NAME
    sys.modules["kernel"] = module
    linecache.cache[_FILE_NAME] = (len(source), None, source.splitlines(keepends=True), _FILE_NAME)
    exec(compile(source, _FILE_NAME, "exec"), module.__dict__)
    with torch.no_grad():
        module.launch(*inputs, *outputs)
    torch.save(outputs, path / "outputs.pt")
