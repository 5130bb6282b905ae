"""A task's reference under Inductor, compiled once into a package that a fresh child loads in milliseconds.

`torch.compile` in a child costs a second of imports and some more of tracing, and every call pays for its guards, which
the same region inside a compiled model would not: timing that would flatter the candidate. So the package holds what
`torch.compile` generates and builds, which the child runs without anything around it (generated.py). Where torch's
private interfaces differ, or its output can't be run like that, the reference is compiled ahead of time instead
(AOTInductor): the same loops with glue in C++, at four times the cost.

The compilation runs the reference, which is the user's own code, in a process of its own: importing and configuring
Inductor would change this one. That process stays for the next reference, since its imports cost several seconds.
Packages are kept in the cache folder, by the hash of everything that decides them. Parameters of a KernelBench module
become inputs, so that nothing is folded into constants.

Cost on the CPU: about 2 s of processor time for each reference, and once for a cache folder 10 s for Inductor's own
headers. On a GPU the fastest of four is taken.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import math
import os
import platform
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autokernel import settings
from autokernel.errors import NotTimed
from autokernel.judge import isolation
from autokernel.judge.children import Kernel
from autokernel.records import Task, TensorSpec
from autokernel.task import LoadedTask

COMPILE_SECONDS = 300.0
_METHOD = 3  # of choosing among compilations for a GPU: packages of another one aren't used


def kernel(
    loaded: LoadedTask,
    reference: str,
    parameters: tuple[str, ...] = (),
    *,
    copies: bool = False,
    threads: int | None = None,
) -> Kernel:
    """The opponent "inductor" for a task. `reference`: text of the file with `Model`; the rest as in `Kernel`.

    `threads`: what the child will use; None: what torch uses here. Raises NotTimed when Inductor can't compile it.
    """
    import torch

    count = threads if threads is not None else torch.get_num_threads()
    try:
        package = prepare(reference, loaded.task.inputs, parameters, count, loaded.task)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NotTimed(what="torch.compile", task=loaded.task.id, detail=error) from error
    return Kernel("inductor", reference, parameters, artifact=package, copies=copies)


def prepare(
    reference: str, inputs: Sequence[TensorSpec], parameters: Sequence[str], threads: int, task: Task | None = None
) -> Path:
    """The package of `reference` for these inputs, made now or before. Raises ValueError with the end of its log."""
    import torch

    job = {
        "reference": reference,
        "parameters": list(parameters),
        "inputs": [[s.dtype, s.shape, s.stride, s.offset] for s in inputs],
        "threads": threads,
        "device": "cpu",
    }
    if task is not None and task.device_class == "cuda":
        job |= {"device": "cuda", "index": torch.cuda.current_device(), "task": task.model_dump(mode="json")}
        job |= {"method": _METHOD}
    folder = settings.cache_dir() / "inductor"
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"{_key({name: value for name, value in job.items() if name != 'task'})}.zip"
    if not package.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "model.pt2"  # the ending that AOTInductor wants
            _compile({**job, "package": str(made)})
            made.replace(package)
    return package


def _key(job: dict[str, Any]) -> str:
    import torch

    machine = [torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability(), _processor()]
    if job["device"] == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        machine = [torch.__version__, properties.name, str(properties.major), str(properties.minor)]
    return hashlib.sha256(json.dumps([job, machine], sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith("model name")), "")


def _compile(job: dict[str, Any]) -> None:
    """Raises ValueError with the end of the compiling process's words."""
    global _server
    if _server is None or not _server.alive():
        _server = _Server()
    try:
        _server.compile(job)
    except BaseException:  # also an interrupt: its answer, when it came, would be taken for the next one's
        _server.close()
        _server = None
        raise


def start() -> None:
    """Begin to start the compiling process, whose imports take seconds, before there is something to compile."""
    global _server
    if _server is None or not _server.alive():
        _server = _Server()


def stop() -> None:
    """End the compiling process, if there is one; the next reference starts another."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


class _Server:
    """The compiling process. Jobs go in as lines of JSON; a line comes back when one is done."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process; see close
        self._process = subprocess.Popen(
            isolation.python("autokernel.judge.inductor", "serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        atexit.register(self.close)

    def alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, job: dict[str, Any]) -> None:
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("the compiling process has no pipes")
        begin = self._log.tell()
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ValueError(f"the compiling process ended: {self._words(begin)}") from error
        ready, _, _ = select.select([self._process.stdout], [], [], COMPILE_SECONDS)
        answer = self._process.stdout.readline() if ready else b""
        if answer.strip() != b"done" or not Path(job["package"]).exists():
            why = self._words(begin) if ready else f"it took more than {COMPILE_SECONDS:.0f} s"
            raise ValueError(f"Inductor did not compile it: {why}")

    def close(self) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        atexit.unregister(self.close)

    def _words(self, begin: int) -> str:
        self._log.seek(begin)
        return self._log.read().decode("utf-8", "replace").strip()[-400:] or "no message"


_server: _Server | None = None


def serve() -> None:
    """Entry of the compiling process: jobs as lines on stdin until it ends. Ends with the first job that fails."""

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints is not an answer
    for line in sys.stdin:
        compile_job(json.loads(line))
        answers.write(b"done\n")
        answers.flush()


def compile_job(job: dict[str, Any]) -> None:
    """Compile one reference into its package."""
    import torch
    from torch._inductor import config

    from autokernel.judge.buffers import torch_dtype

    if job["device"] == "cuda":
        compile_on_gpu(job)
        return
    config.compile_threads = 1  # a pool of compiling processes takes longer to start than one small kernel to build
    torch.set_num_threads(job["threads"])
    function = _function(job)
    values = []
    for dtype, shape, stride, _ in job["inputs"]:
        values.append(torch.empty_strided(shape, stride, dtype=torch_dtype(dtype)).zero_())
    with torch.no_grad():
        try:
            _package_generated(function, values, Path(job["package"]))
        except Exception as error:  # private interfaces: whatever is different in another torch, the slow way remains
            sys.stderr.write(f"compiled ahead of time instead: {type(error).__name__}: {error}\n")
            _package_ahead(function, values, job["package"])


def _function(job: dict[str, Any]) -> Any:
    """The reference as a function of all its inputs, parameters and buffers among them."""
    import torch

    from autokernel.judge.child import build_model

    names = job["parameters"]
    with torch.device(job["device"]):
        model = build_model(job["reference"], "Model")
    if not names:
        return model

    class Bound(torch.nn.Module):
        """The model with its parameters and buffers as trailing inputs."""

        def forward(self, *values: Any) -> Any:
            split = len(values) - len(names)
            state = dict(zip(names, values[split:], strict=True))
            return torch.func.functional_call(model, state, values[:split])

    return Bound()


def compile_on_gpu(job: dict[str, Any]) -> None:
    """The fastest of a few texts that Inductor generates for a GPU, with the compiled and tuned kernels it needs.

    Inductor tunes each kernel once, one call at a time after it has flushed the cache, and was seen to choose kernels
    1.3 to 2 times slower than its choice of another day: for short ones such calls hardly differ. An opponent must not
    be weak by accident. So it is compiled with its usual search and with its wider one, each tuned in its own way and
    again in graphs, as the judge times, and what is fastest in graphs is packed. The caches in which its kernels are
    found are each job's own, and part of the package: a fresh child compiles nothing.
    """
    import torch

    from autokernel.judge import generated

    torch.cuda.set_device(job["index"])
    function = _function(job)
    with tempfile.TemporaryDirectory(dir=Path(job["package"]).parent) as folder, torch.no_grad():
        made: list[tuple[float, str, Path]] = []
        for number, patch in enumerate(_SEARCHES):
            usual, again = Path(folder) / str(number), Path(folder) / f"{number}-graphs"
            made.append(_generated_on_gpu(job, function, usual, patch))
            shutil.copytree(usual, again, ignore=shutil.ignore_patterns("*.best_config"))  # compiled, not yet chosen
            try:
                with _tuned_in_graphs():
                    made.append(_generated_on_gpu(job, function, again, patch))
            except Exception as error:  # private interfaces: another torch may tune in another way
                sys.stderr.write(f"not tuned in graphs: {type(error).__name__}: {error}\n")
        best, text, caches = min(made, key=lambda one: one[0])
        sys.stderr.write(
            f"µs in graphs: {', '.join(f'{1e6 * one:.3g}' for one, _, _ in made)}; {1e6 * best:.3g} taken\n"
        )
        generated.pack_caches(Path(job["package"]), text, caches)


_SEARCHES: tuple[dict[str, Any], ...] = ({}, {"max_autotune_pointwise": True})
_GRAPH_CALLS = 64  # a CUDA graph of fewer short kernels costs more a kernel


@contextlib.contextmanager
def _tuned_in_graphs() -> Iterator[None]:
    """Inductor times each configuration as calls that follow one another in a CUDA graph."""
    from unittest import mock

    import torch
    from torch._inductor.runtime.benchmarking import benchmarker

    def milliseconds(_: Any, call: Callable[[], Any], *args: Any, **kwargs: Any) -> float:
        return 1e3 * _seconds_of(call, _GRAPH_CALLS) / _GRAPH_CALLS

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with mock.patch.object(type(benchmarker), "benchmark_gpu", milliseconds), torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _seconds_of(call: Callable[[], Any], calls: int) -> float:
    """Seconds that `calls` of them take as one CUDA graph on the current stream, the least of a few blocks."""
    import torch

    call()
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(calls):
            kept = call()  # until the next ones are there
    least = float("inf")
    graph.replay()
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(4):
            graph.replay()
        end.record()
        end.synchronize()
        least = min(least, float(begin.elapsed_time(end)) / 4)
    del kept
    return least / 1e3


def _generated_on_gpu(
    job: dict[str, Any], function: Any, caches: Path, patch: dict[str, Any]
) -> tuple[float, str, Path]:
    """Seconds a call, the text, and the caches that compiling and one run left behind."""
    import torch
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.utils import clear_inductor_caches
    from torch.fx.experimental.proxy_tensor import make_fx

    from autokernel.records import Task
    from autokernel.task import inputs

    task = Task.model_validate(job["task"])
    for name, folder in (("TORCHINDUCTOR_CACHE_DIR", caches), ("TRITON_CACHE_DIR", caches / "triton")):
        os.environ[name] = str(folder)
    clear_inductor_caches()
    compiled: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        compiled.append(compile_fx_inner(*args, **kwargs))
        return compiled[-1]

    def draw() -> list[Any]:
        return inputs.draw(task, secrets.randbits(32))

    with torch.device("cuda"), config.patch({"compile_threads": 1, "fx_graph_cache": False, **patch}):
        values = draw()
        graph = make_fx(function, tracing_mode="fake")(*values)
        run: Any = compile_fx(graph, list(values), inner_compile=keep)
        _busy(0.2)  # clocks that have fallen make what is tuned first look slow
        _refuse_another(_listed(run(*values)), _listed(function(*values)))
        seconds = _seconds_in_graphs(run, draw)
    (one,) = compiled
    return seconds, one.source_code, caches


_MISMATCHES = 0.01  # of an output's elements: fused code rounds less than eager, which shows where terms cancel


def _refuse_another(found: list[Any], wanted: list[Any]) -> None:
    """Raises ValueError where Inductor's results are those of another function; rounding is the judge's business."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ValueError(
                f"result {number} is {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
            )
        if not other.is_floating_point() or not other.numel():
            continue  # an argmax or a comparison may fall either way on a tie of rounding
        wide = other.double()
        usual = wide.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
        close = (one.double() - wide).abs() <= 2e-2 * (wide.abs() + usual)
        close |= (one == other) | (one.isnan() & other.isnan())
        if close.double().mean() < 1 - _MISMATCHES:
            raise ValueError(
                f"result {number} differs from eager's in {int((~close).sum())} of {close.numel()} elements"
            )


def _busy(seconds: float) -> None:
    import torch

    side = torch.ones(2048, 2048, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(side, side)
        torch.cuda.synchronize()


def _seconds_in_graphs(run: Any, draw: Callable[[], list[Any]]) -> float:
    """Seconds a call over as many copies of the inputs as the judge would rotate, the least of a few blocks."""
    import torch

    from autokernel.judge import timing_cuda

    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    size = 2 * sum(value.numel() * value.element_size() for value in draw())  # outputs are about as large
    sets = min(timing_cuda.plan(size, cache, cold=timing_cuda.is_cold(size, cache)).sets, 16)
    copies = [draw() for _ in range(sets)]
    passes = math.ceil(_GRAPH_CALLS / sets)

    def all_of() -> list[Any]:
        return [run(*one) for one in copies]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        seconds = _seconds_of(all_of, passes)
    return seconds / (passes * sets)


def _package_generated(function: Any, values: list[Any], package: Path) -> None:
    """What `torch.compile` generates and builds for these inputs, checked against the function itself."""
    import torch
    from torch._inductor.codecache import CppPythonBindingsCodeCache
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch.fx.experimental.proxy_tensor import make_fx

    from autokernel.judge import generated

    compiled: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        compiled.append(compile_fx_inner(*args, **kwargs))
        return compiled[-1]

    graph = make_fx(function, tracing_mode="fake")(*values)
    compile_fx(graph, list(values), inner_compile=keep)
    (one,) = compiled
    libraries: list[Path] = []

    def find(argument_types: list[str], source: str) -> Any:
        kernel = CppPythonBindingsCodeCache.load_pybinding(argument_types, source)  # built a moment ago
        libraries.append(Path(kernel.__self__.__file__))
        return kernel

    call = generated.execute(one.source_code, find)
    inputs = [_sample(value) for value in values]
    wanted = _listed(function(*inputs))
    torch.testing.assert_close(list(call(list(inputs))), wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
    generated.pack(package, one.source_code, libraries)


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _sample(value: Any) -> Any:
    """Random numbers in the layout of `value`; zeros where it holds no floating-point numbers (indices stay valid)."""
    if value.is_floating_point():
        value.uniform_(0.5, 1.5)
    return value


def _package_ahead(function: Any, values: list[Any], package: str) -> None:
    import torch
    from torch._inductor import config

    glue = {"aot_inductor.compile_wrapper_opt_level": "O0"} if hasattr(config, "aot_inductor") else {}
    exported = torch.export.export(function, tuple(values))
    torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=glue)
