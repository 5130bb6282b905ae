"""A task's reference under Inductor, compiled once into a package that a fresh child loads in milliseconds.

`torch.compile` in a child costs a second of imports and some more of tracing, and every call pays for its guards, which
the same region inside a compiled model would not: timing that would flatter the candidate. So the reference is
exported and compiled ahead of time (AOTInductor): the same generated loops, called without guards and with about 10 µs
less overhead. Parameters of a KernelBench module become inputs, so that nothing is folded into constants.

The compilation runs the reference, which is the user's own code, in a process of its own: importing and configuring
Inductor would change this one. Packages are kept in the cache folder, by the hash of everything that decides them.

Cost: 10 to 20 s of processor time for each reference, most of it g++ on torch's headers.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autokernel import settings
from autokernel.errors import NotTimed
from autokernel.judge import isolation
from autokernel.judge.children import Kernel
from autokernel.records import TensorSpec
from autokernel.task import LoadedTask

COMPILE_SECONDS = 300.0


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
        package = prepare(reference, loaded.task.inputs, parameters, count)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NotTimed(what="torch.compile", task=loaded.task.id, detail=error) from error
    return Kernel("inductor", reference, parameters, artifact=package, copies=copies)


def prepare(reference: str, inputs: Sequence[TensorSpec], parameters: Sequence[str], threads: int) -> Path:
    """The package of `reference` for these inputs, made now or before. Raises ValueError with the end of its log."""
    job = {
        "reference": reference,
        "parameters": list(parameters),
        "inputs": [[s.dtype, s.shape, s.stride] for s in inputs],
        "threads": threads,
    }
    folder = settings.cache_dir() / "inductor"
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"{_key(job)}.pt2"
    if not package.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "model.pt2"
            _compile({**job, "package": str(made)})
            made.replace(package)
    return package


def _key(job: dict[str, Any]) -> str:
    import torch

    machine = [torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability(), _processor()]
    return hashlib.sha256(json.dumps([job, machine], sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith("model name")), "")


def _compile(job: dict[str, Any]) -> None:
    done = subprocess.run(
        isolation.python("autokernel.judge.inductor", "compile_job"),
        input=json.dumps(job).encode(),
        capture_output=True,
        timeout=COMPILE_SECONDS,
    )
    if done.returncode != 0 or not Path(job["package"]).exists():
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise ValueError(f"Inductor did not compile it: {words[-400:] or 'no message'}")


def compile_job() -> None:
    """Entry of the compiling process: a job as JSON on stdin."""
    import torch

    from autokernel.judge.buffers import torch_dtype
    from autokernel.judge.child import build_model

    job = json.loads(sys.stdin.read())
    torch.set_num_threads(job["threads"])
    model = build_model(job["reference"], "Model")
    names = job["parameters"]

    class Bound(torch.nn.Module):
        """The model with its parameters and buffers as trailing inputs."""

        def forward(self, *values: Any) -> Any:
            split = len(values) - len(names)
            state = dict(zip(names, values[split:], strict=True))
            return torch.func.functional_call(model, state, values[:split])

    values = []
    for dtype, shape, stride in job["inputs"]:
        values.append(torch.empty_strided(shape, stride, dtype=torch_dtype(dtype)).zero_())
    with torch.no_grad():
        exported = torch.export.export(Bound() if names else model, tuple(values))
        torch._inductor.aoti_compile_and_package(exported, package_path=job["package"])
