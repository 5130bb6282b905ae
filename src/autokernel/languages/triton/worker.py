"""Compiles one candidate: runs its file and its `launch` as the judged child will, on tensors without memory.

Everything in this process belongs to the candidate. It has no GPU, no network, and one folder to write to; what it
answers is a claim, bounded in size, and it is killed at its deadline by the process that forked it.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autokernel.languages.triton import fakes, standin
from autokernel.languages.triton.targets import Chip

FILE_NAME = "<kernel.py>"  # as in the judged child: line numbers are a part of Triton's cache key
JOB, ANSWER, CACHE, LOG = "job.json", "answer.json", "cache", "log"
_WORDS = 12_000  # characters of an answer
# host code that can't be followed without a GPU or values: not the kernels' fault
_UNFOLLOWED = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "Torch not compiled with CUDA",
    "not linked with support for cuda",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Cannot access data pointer",
)


def run(folder: Path, link: str | None) -> None:
    """Do the job in `folder` and leave `answer.json` and the `cache` folder there. `link`: see `standin.install`."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    _prepare(folder)
    mode = fakes.install()
    driver = standin.install(Chip(**job["chip"]), link)
    error, kind, notes = "", "", []
    try:
        with mode, torch.no_grad():
            launch = _launch(job["source"])
            _call(mode, launch, job["settings"][0])
            for setting in job["settings"][1:]:
                notes += _try(mode, launch, setting)
    except BaseException as caught:  # SystemExit and KeyboardInterrupt too: they are the candidate's
        kind, error = _kind(caught), _words(caught, folder / LOG)
    notes += driver.problems[:1]
    answer = {"kind": kind, "error": error[:_WORDS], "notes": [note[:1000] for note in notes[:8]]}
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _prepare(folder: Path) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(folder / CACHE)
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.makedirs(folder / "tmp", exist_ok=True)
    tempfile.tempdir = None
    os.chdir(folder)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR)
    for fd, place in ((null, 0), (null, 1), (log, 2)):
        os.dup2(fd, place)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as this process lives)


def _launch(source: str) -> Any:
    """Execute a file's text exactly as the judged child does (judge/child.py): module name, file name, line numbers."""
    module = types.ModuleType("kernel")
    module.__file__ = FILE_NAME
    sys.modules["kernel"] = module
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    exec(compile(source, FILE_NAME, "exec"), module.__dict__)
    return module.launch


def _call(mode: FakeTensorMode, launch: Any, setting: Sequence[Mapping[str, Any]]) -> None:
    """`launch` over tensors of a setting's layout; equal strides and offsets mean equal specialisations."""
    with mode:
        launch(*[fakes.tensor(spec) for spec in setting])


def _try(mode: FakeTensorMode, launch: Any, setting: Sequence[Mapping[str, Any]]) -> list[str]:
    try:
        _call(mode, launch, setting)
    except Exception as error:
        shapes = ", ".join(str(tuple(spec["shape"])) for spec in setting)
        return [f"not compiled ahead for the shapes {shapes}: {type(error).__name__}: {error}"[:1000]]
    return []


def _kind(error: BaseException) -> str:
    """ "unfollowed": host code that needs a GPU; "compile": Triton refuses a kernel; "launch": the file's own error."""
    words = f"{type(error).__name__}: {error}"
    if any(sign in words for sign in _UNFOLLOWED):
        return "unfollowed"
    import triton

    home = os.path.dirname(os.path.abspath(triton.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    ours = type(error).__module__.partition(".")[0] == "triton"
    return "compile" if ours or any(frame.filename.startswith(home) for frame in frames) else "launch"


def _words(error: BaseException, log: Path) -> str:
    """The error in its own words, the file's lines that led to it, and the compiler's remarks."""
    try:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == FILE_NAME]
        text = f"{type(error).__name__}: {error}"
        if error.__cause__ is not None and str(error.__cause__) not in text:
            text += f"\n{type(error.__cause__).__name__}: {error.__cause__}"
        lines = "".join(traceback.format_list(frames[-3:]))
    except BaseException:
        return f"{type(error).__name__}, which can't be printed"
    with open(log, "rb") as file:
        said = file.read(1 << 16).decode("utf-8", "replace").splitlines()
    remarks = [line[:400] for line in said if "error:" in line][:6]
    return "\n".join([f"{lines}{text}", *(line for line in remarks if line not in text)])
