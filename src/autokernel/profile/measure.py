"""`profile`: the time of every region inside the real model, checked against the model left alone.

The captured graphs run on the inputs they were captured with, a clock around each region, in turn with the user's
model, so that a busy machine disturbs both alike. Figures are means over the quieter half of the runs: unlike medians,
the means of the parts add up to the mean of the whole. `total_us` and `uninstrumented_us` are reported as measured.

Python between operators is model time attributed to nothing. What was not captured (the code between graph breaks,
refused graphs) is the difference to the model's own time, and is listed with its reason.

This is the CPU's way. A model on a GPU is measured in measure_cuda.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from autokernel.graph import Capture
from autokernel.profile.measure_cuda import device_of, profile_cuda
from autokernel.profile.rows import Coverage, line_rows, region_rows
from autokernel.profile.runs import instrumented, mean_us, quiet_half, skipped
from autokernel.profile.state import clone, keeping_buffers
from autokernel.profile.timed import TimedGraph, line_shares, timed
from autokernel.records import Ceilings, Profile
from autokernel.workload import Workload

AGREEMENT = 0.05  # instrumented and uninstrumented time may differ by this part
_ATTEMPTS = 3
_MIN_RUNS, _MAX_RUNS = 6, 60


def profile(
    workload: Workload, capture: Capture, ceilings: Ceilings, coverage: Coverage, *, seconds: float = 5.0
) -> Profile:
    """Profile the workload's first case. Takes about `seconds`, up to three times as long where the machine is noisy.

    coverage: what the generators say of a region. Raises what the user's own model raises.
    """
    device = device_of(capture)
    if device is not None:
        return profile_cuda(workload, capture, ceilings, coverage, device, seconds=seconds)
    graphs = [timed(graph) for graph in capture.graphs]
    partial = len(graphs) > 1 or bool(capture.skipped)
    end = time.monotonic() + _ATTEMPTS * seconds
    with torch.no_grad(), keeping_buffers(workload.model):
        for _ in range(_ATTEMPTS):
            alone = _alternate(workload, graphs, seconds)
            inside = instrumented(graphs)
            runs, uninstrumented = quiet_half(inside), mean_us(alone, quiet_half(alone))
            graphs_us = mean_us(inside, runs)
            if partial or abs(graphs_us / uninstrumented - 1) <= AGREEMENT or time.monotonic() + seconds > end:
                break
        shares = [line_shares(graph.captured) for graph in graphs]
    outside = max(uninstrumented - graphs_us, 0.0) if partial else 0.0
    total = graphs_us + outside
    rows = region_rows(graphs, runs, total, ceilings, coverage)
    return Profile(
        target=workload.target,
        device="cpu",
        threads=torch.get_num_threads(),
        total_us=total,
        uninstrumented_us=uninstrumented,
        attributed=sum(row.time_us for row in rows) / total,
        regions=rows,
        lines=line_rows(graphs, runs, shares, total),
        skipped=skipped(capture, outside, total),
        outside_us=outside,
        ceilings=ceilings,
    )


def _alternate(workload: Workload, graphs: Sequence[TimedGraph], seconds: float) -> list[int]:
    """Run the model and the graphs in turn until the time is over; nanoseconds of each run of the model alone."""
    case = workload.cases[0]
    args, kwargs = clone((case.args, case.kwargs))

    def model() -> None:
        begin = time.perf_counter_ns()
        workload.model(*args, **kwargs)
        alone.append(time.perf_counter_ns() - begin)

    alone: list[int] = []
    for _ in range(2):
        model()
        _run(graphs)
    alone.clear()
    for graph in graphs:
        graph.clear()
    end = time.monotonic() + seconds
    while len(alone) < _MAX_RUNS and (len(alone) < _MIN_RUNS or time.monotonic() < end):
        first, second = (model, lambda: _run(graphs)) if len(alone) % 2 else (lambda: _run(graphs), model)
        first()
        second()
    return alone


def _run(graphs: Sequence[TimedGraph]) -> None:
    for graph in graphs:
        graph.run()
