"""A few calls of the model as a Chrome trace (JSON), for chrome://tracing and Perfetto.

First the model as it is, then its captured graphs with a named range for each region, so that the kernels of a region
can be found. `torch.profiler` records and writes; ranges are `record_function`s, and reach kernels by their launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

from autokernel.graph import Capture
from autokernel.profile.measure_cuda import device_of
from autokernel.profile.recorders import quiet
from autokernel.profile.state import clone, keeping_buffers
from autokernel.profile.timed import Part, instrument
from autokernel.workload import Workload

CALLS = 2
_WARM = 2


def write_trace(path: Path, workload: Workload, capture: Capture) -> None:
    """Record `CALLS` calls of the workload's first case and one run of its graphs into `path` (compressed if ".gz").

    Raises OSError where it can't be written, and what the user's own model raises.
    """
    device = device_of(capture)
    runs = [*_model(workload), *_graphs(capture)]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device is not None else [])]
    with torch.no_grad(), keeping_buffers(workload.model), quiet():
        for _, run in _WARM * runs:
            run()
        _wait(device)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for name, run in runs:
                with record_function(name):
                    run()
                _wait(device)
    path.touch()  # torch's writer says nothing where it can't
    profiler.export_chrome_trace(str(path))


def _wait(device: torch.device | None) -> None:
    if device is not None:
        torch.cuda.synchronize(device)


def _model(workload: Workload) -> list[tuple[str, Callable[[], object]]]:
    case = workload.cases[0]
    args, kwargs = clone((case.args, case.kwargs))
    return [(f"model, call {number}", lambda: workload.model(*args, **kwargs)) for number in range(1, CALLS + 1)]


def _graphs(capture: Capture) -> list[tuple[str, Callable[[], object]]]:
    found: list[tuple[str, Callable[[], object]]] = []
    for graph in capture.graphs:
        forward, inputs = instrument(graph, _named)[0].forward, graph.inputs
        found.append((f"captured graph {graph.index}", functools.partial(forward, *inputs)))
    return found


def _named(function: Callable[..., Any], part: Part, number: int) -> Callable[..., Any]:
    def named(*args: Any, **kwargs: Any) -> Any:
        with record_function(part.name):
            return function(*args, **kwargs)

    return named
