"""The child: the one file that runs candidate code. Everything in this process belongs to the candidate.

It maps the sets it is given, loads what it is told to run, and then does as the parent commands: launches, nothing
else. It holds no expected value, no seed and no verdict. What it says is a claim; the parent looks at the outputs.

Kinds: `source` calls `launch(*inputs, *outputs)` of a kernel file. `model_new` builds the `ModelNew` of a
KernelBench-form file on the shared parameters and copies what it returns into the outputs, within the clock: a result
that is left lazy would be free otherwise. `eager` and `inductor` are trusted opponents: the forward call alone is
timed, and what it returned last is copied afterwards, out of the clock (`flush`), so that they are not charged for a
copy no model would make; `copies` charges it all the same, for an opponent of a `ModelNew`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import json
import linecache
import os
import resource
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autokernel.judge import child_program, generated
from autokernel.judge.buffers import Layout, map_layout
from autokernel.judge.protocol import (
    NONCE_BYTES,
    REQUEST_BYTES,
    TEXT_BYTES,
    Operation,
    Problem,
    Reply,
    Request,
    Status,
)

if TYPE_CHECKING:
    from autokernel.judge.child_cuda import GraphRunner

FILE_NAME = "<kernel.py>"
_LOADER_FOLDER = Path(__file__).resolve().parents[1] / "languages" / "cpp"
_FILE_BYTES = 1 << 28  # of any file it writes
_PROCESSES = 512  # under bubblewrap, where the count is the sandbox's own
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "cannot allocate memory",
    "out of memory",
)

Call = Callable[[], None]
Function = Callable[[], Any]


class BadSource(Exception):
    """The file does not define what it must."""


class Runner:
    """What is run: one callable for each set, and what to do after a loop, out of the clock."""

    def __init__(self, calls: Sequence[Call], flush: Callable[[], None] | None = None) -> None:
        self.calls = calls
        self.flush = flush

    remark = ""

    def replay(self, passes: int) -> float:
        """On the CPU there are no graphs."""
        return self.run(0, passes * len(self.calls))

    def part(self, count: int) -> float:
        """As `replay`."""
        return self.run(0, count)

    def run(self, first: int, count: int) -> float:
        """`count` launches over the sets in rotation from `first` on. Seconds by this process's own clock (a claim)."""
        sets = len(self.calls)
        order = [self.calls[(first + i) % sets] for i in range(count)]
        begin = time.perf_counter()
        for call in order:
            call()
        return time.perf_counter() - begin


def run(fds: Sequence[int]) -> None:
    """The life of a child. `fds`: its socket, its job (JSON), its stderr, the artifact if the job has one, the sets."""
    socket_fd, job_fd, stderr_fd, *rest = fds
    os.setsid()
    job = _read_json(job_fd)
    _standard_streams(stderr_fd)
    _limits(job)
    if job["kind"] == "program":
        child_program.start(job, rest, (socket_fd, job_fd, stderr_fd))
    channel = socket.socket(fileno=socket_fd)
    nonce = bytes.fromhex(job["nonce"])
    channel.send(Reply(Status.hello, nonce).encode())
    try:
        torch.set_num_threads(job["threads"])
        artifact = rest.pop(0) if job["artifact"] else None
        sets = _mapped(job, rest)
        for fd in (job_fd, stderr_fd, *rest):
            os.close(fd)
        with torch.no_grad():
            runner: Runner | GraphRunner = _load(job, sets, artifact)
            if job["device"] == "cuda":
                from autokernel.judge.child_cuda import GraphRunner

                runner = GraphRunner(runner.calls, runner.flush)
    except BaseException as error:
        channel.send(_failure(nonce, error).encode())
        return
    channel.send(Reply(Status.loaded, nonce).encode())
    with torch.no_grad():
        _serve(channel, runner)


def _mapped(job: dict[str, Any], fds: Sequence[int]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """The sets, in shared memory of the CPU or of a GPU."""
    layouts = [Layout.from_json(layout) for layout in job["layouts"]]
    if job["device"] == "cpu":
        return [map_layout(fd, layout) for fd, layout in zip(fds, layouts, strict=True)]
    from autokernel.judge import child_cuda

    child_cuda.begin(job)
    return child_cuda.map_layouts(layouts, fds)


def _serve(channel: socket.socket, runner: Runner | GraphRunner) -> None:
    while data := channel.recv(REQUEST_BYTES + 1):
        request = Request.decode(data)
        try:
            claimed, remark = 0.0, ""
            if request.operation is Operation.flush:
                if runner.flush is not None:
                    runner.flush()
            elif request.operation is Operation.replay:
                claimed, remark = runner.replay(request.calls), runner.remark
            elif request.operation is Operation.part:
                claimed = runner.part(request.first)
            elif request.operation is Operation.listed:
                from autokernel.judge.child_listing import listed

                remark = listed(functools.partial(runner.run, request.first, 1))
            else:
                claimed = runner.run(request.first, request.calls)
        except BaseException as error:
            channel.send(_failure(request.nonce, error).encode())
            return
        channel.send(Reply(Status.done, request.nonce, claimed_seconds=claimed, text=remark).encode())


# --- what is run ------------------------------------------------------------------------------------------------------


def _load(job: dict[str, Any], sets: Sequence[tuple[list[Tensor], list[Tensor]]], artifact: int | None) -> Runner:
    kind = job["kind"]
    if kind == "source":
        return _load_launch(job["source"], sets)
    if kind == "model_new":
        functions = _models(job, "ModelNew", sets)
        return Runner([_copying(f, outputs) for f, (_, outputs) in zip(functions, sets, strict=True)])
    if job["device"] == "cpu":
        _keep_freed_memory()
    if kind == "eager":
        functions = _models(job, "Model", sets)
    elif kind == "inductor" and artifact is not None:
        functions = _packaged(artifact, sets)
    else:
        raise BadSource(f"there is no kind {kind}")
    if job["copies"]:
        return Runner([_copying(f, outputs) for f, (_, outputs) in zip(functions, sets, strict=True)])
    return _keeping(functions, [outputs for _, outputs in sets], forget=job["device"] == "cpu")


def _load_launch(source: str, sets: Sequence[tuple[list[Tensor], list[Tensor]]]) -> Runner:
    launch = getattr(_execute(source), "launch", None)
    if not callable(launch):
        raise BadSource("the kernel file defines no function `launch`")

    def call(arguments: tuple[Tensor, ...]) -> Call:
        return lambda: launch(*arguments)

    return Runner([call((*inputs, *outputs)) for inputs, outputs in sets])


def _models(job: dict[str, Any], name: str, sets: Sequence[tuple[list[Tensor], list[Tensor]]]) -> list[Function]:
    """`Model` or `ModelNew`, built once; before each call a set's trailing inputs become its parameters, uncopied."""
    with torch.device(job["device"]):
        made = build_model(job["source"], name, job["reference"])
    names: list[str] = job["parameters"]

    def function(inputs: list[Tensor]) -> Function:
        split = len(inputs) - len(names)
        places = [_place(made, n, t) for n, t in zip(names, inputs[split:], strict=True)]
        forward = inputs[:split]

        def call() -> Any:
            for owner, leaf, tensor in places:
                owner[leaf] = tensor
            return made(*forward)

        return call

    return [function(inputs) for inputs, _ in sets]


def build_model(source: str, name: str, reference: str = "") -> nn.Module:
    """The class `name` of a file's text, constructed with `get_init_inputs()` of that file, or of `reference`."""
    module = _execute(source)
    kind = getattr(module, name, None)
    if kind is None:
        raise BadSource(f"the file defines no class `{name}`")
    arguments = getattr(module, "get_init_inputs", None)
    if arguments is None and reference:
        arguments = getattr(_execute(reference, "<reference.py>"), "get_init_inputs", None)
    torch.manual_seed(0)
    made = kind(*(arguments() if arguments is not None else ()))
    if not isinstance(made, nn.Module):
        raise BadSource(f"`{name}` is no torch.nn.Module")
    return made.eval()


def _place(model: nn.Module, name: str, tensor: Tensor) -> tuple[dict[str, Any], str, Tensor]:
    """Where a parameter or buffer called `name` is kept, and `tensor` in the form it is kept in."""
    path, _, leaf = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        owner = nn.Module()
    old = owner._parameters.get(leaf, owner._buffers.get(leaf))
    if old is None:
        raise BadSource(f"`{type(model).__name__}` has no parameter or buffer `{name}`")
    if old.shape != tensor.shape:
        raise BadSource(f"`{name}` must have shape {tuple(tensor.shape)}, not {tuple(old.shape)}")
    if leaf in owner._parameters:
        return owner._parameters, leaf, nn.Parameter(tensor, requires_grad=False)
    return owner._buffers, leaf, tensor


def _packaged(artifact: int, sets: Sequence[tuple[list[Tensor], list[Tensor]]]) -> list[Function]:
    """The functions of a package made by `inductor.prepare`, one for each set."""
    path = f"/proc/self/fd/{artifact}"
    if generated.is_package(path):
        call = generated.load(path)
    else:
        call = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1).boxed_run

    def function(inputs: list[Tensor]) -> Function:
        return lambda: call(list(inputs))

    return [function(inputs) for inputs, _ in sets]


def _tensors(result: Any, outputs: list[Tensor]) -> list[Tensor]:
    found = [result] if isinstance(result, Tensor) else list(result)
    if len(found) != len(outputs):
        raise BadSource(f"{len(found)} results where {len(outputs)} are expected")
    for index, (tensor, output) in enumerate(zip(found, outputs, strict=True)):
        if tensor.shape != output.shape or tensor.dtype != output.dtype:
            raise BadSource(
                f"result {index} is {tensor.dtype} {tuple(tensor.shape)}, not {output.dtype} {tuple(output.shape)}"
            )
    return found


def _copy(result: Any, outputs: list[Tensor]) -> None:
    for tensor, output in zip(_tensors(result, outputs), outputs, strict=True):
        output.copy_(tensor)


def _copying(function: Function, outputs: list[Tensor]) -> Call:
    return lambda: _copy(function(), outputs)


def _keeping(functions: Sequence[Function], outputs: Sequence[list[Tensor]], forget: bool) -> Runner:
    """`forget`: let a result go once it is copied, as a model would. A graph's results must stay where they are."""
    results: list[Any] = [None] * len(functions)

    def call(index: int, function: Function) -> Call:
        def keep() -> None:
            results[index] = function()

        return keep

    def flush() -> None:
        for index, result in enumerate(results):
            if result is not None:
                _copy(result, outputs[index])
                results[index] = None if forget else result
        if not forget:
            torch.cuda.synchronize()

    return Runner([call(i, f) for i, f in enumerate(functions)], flush)


def _execute(source: str, name: str = FILE_NAME) -> types.ModuleType:
    """Run a file's text as a module of its own. `autokernel_loader`, the vendored loader, can be imported from it."""
    if str(_LOADER_FOLDER) not in sys.path:
        sys.path.append(str(_LOADER_FOLDER))
    module = types.ModuleType("kernel")
    module.__file__ = name
    sys.modules["kernel"] = module
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


# --- the process ------------------------------------------------------------------------------------------------------


def _read_json(fd: int) -> dict[str, Any]:
    made = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    if not isinstance(made, dict):
        raise TypeError("a job is a JSON object")
    return made


def _standard_streams(stderr_fd: int) -> None:
    """stdin empty, stdout nowhere, stderr a file of fixed size: nothing written can block, or reach a terminal."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(stderr_fd, 2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(null, "w")  # Python's own warnings would only fill the file
    faulthandler.enable(file=2)


def _limits(job: dict[str, Any]) -> None:
    """Resource limits, and first in line when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    if job["isolation"] == "bubblewrap":
        _lower(resource.RLIMIT_NPROC, _PROCESSES)
    limit = job["memory_limit_bytes"]
    if limit is not None:
        # Private writable memory is limited as asked; the address space, where threads and allocators reserve room
        # that they never use, more loosely, to bound shared memory made by the candidate.
        shared = sum(layout["size"] for layout in job["layouts"])
        _lower(resource.RLIMIT_DATA, _status_bytes("VmData") + limit)
        if job["device"] == "cpu":  # a GPU's driver reserves more addresses than there is memory
            _lower(resource.RLIMIT_AS, _status_bytes("VmSize") + shared + 2 * limit + (8 << 30))


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed: in a model the same memory is used again at once; so an opponent's should be."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def _failure(nonce: bytes, error: BaseException) -> Reply:
    """A bounded report of `error`; the innermost frames survive. The candidate's exception may itself misbehave."""
    assert len(nonce) == NONCE_BYTES
    problem = Problem.exception
    try:
        words = str(error)
        if isinstance(error, BadSource | SyntaxError):
            problem = Problem.bad_source
        elif isinstance(error, MemoryError) or any(sign in words.lower() for sign in _OUT_OF_MEMORY):
            problem = Problem.out_of_memory
        elif isinstance(getattr(error, "problem", None), Problem):
            problem = error.problem  # type: ignore[attr-defined]
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        frames = "".join(traceback.format_list(own[-6:]))
        text = words if isinstance(error, BadSource) else f"{frames}{type(error).__name__}: {words}"
    except BaseException:
        text = f"{type(error).__name__}, which can't be printed"
    while len(text.encode("utf-8", "replace")) > TEXT_BYTES:
        text = "…" + text[len(text) // 8 + 1 :]
    return Reply(Status.failed, nonce, problem, text=text)
