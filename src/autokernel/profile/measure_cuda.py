"""`profile` on a GPU: the kernels that each region launches inside the real model, and the time between kernels.

Times are of kernels, not of calls: the captured graphs and the model run in turn under a recorder (torch's profiler;
CUDA events where that sees no kernels), and each kernel counts for the region that launched it. How long a call takes
is measured apart, with no recorder, by CUDA events around single calls. What is left of it while no kernel runs is the
launch gap: the GPU waits for the CPU, which no kernel can mend.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autokernel.graph import Capture
from autokernel.profile.marked import MarkedGraph, NodePass
from autokernel.profile.recorders import PREFIX, Profiler, Recorder, Stamps
from autokernel.profile.rows import Coverage, line_rows, region_rows
from autokernel.profile.runs import instrumented, mean_us, quiet_half, skipped
from autokernel.profile.state import clone, keeping_buffers
from autokernel.records import Ceilings, Profile, RegionRow
from autokernel.workload import Workload

MODEL = f"{PREFIX}model"
_WARM = 2  # runs before those that count, in every session
_MIN_RUNS, _MAX_RUNS, _MAX_CALLS = 4, 12, 200
_SLOWER_UNDER_PROFILER = 4  # a marked run against a bare call, for the plan of a session only
GAP = "launch gaps: the GPU waits for the CPU"


def device_of(capture: Capture) -> torch.device | None:
    """The GPU that the captured graphs work on; None when they stay on the CPU."""
    for graph in capture.graphs:
        for value in pytree.tree_leaves(graph.inputs):
            if isinstance(value, Tensor) and value.device.type == "cuda":
                return value.device
    return None


def profile_cuda(
    workload: Workload,
    capture: Capture,
    ceilings: Ceilings,
    coverage: Coverage,
    device: torch.device,
    *,
    seconds: float,
) -> Profile:
    """As `measure.profile`, for a model on `device`. Raises what the user's own model raises."""
    with torch.no_grad(), keeping_buffers(workload.model), torch.cuda.device(device):
        model = _caller(workload)
        for _ in range(_WARM):
            model()
        calls = _call_times(model, seconds / 4)
        session = _measured(model, capture, statistics.median(calls), seconds)
        calls += _call_times(model, seconds / 4)
        call = statistics.median(calls)
        shares = _line_shares(capture, session.recorder)
    graphs, inside = session.graphs, instrumented(session.graphs)
    partial = len(graphs) > 1 or bool(capture.skipped)
    runs = quiet_half(inside)
    busy, graphs_us = mean_us(session.model, quiet_half(session.model)), mean_us(inside, runs)
    outside = max(busy - graphs_us, 0.0) if partial else 0.0
    gaps = max(call - busy, 0.0)
    total = graphs_us + outside + gaps
    rows = region_rows(graphs, runs, total, ceilings, coverage)
    return Profile(
        target=workload.target,
        device=str(device),
        threads=torch.get_num_threads(),
        total_us=total,
        uninstrumented_us=call,
        attributed=sum(row.time_us for row in rows) / max(graphs_us + outside, 1e-3),
        regions=(*rows, _gap_row(gaps, total)),
        lines=line_rows(graphs, runs, shares, total),
        skipped=skipped(capture, outside, total),
        outside_us=outside,
        ceilings=ceilings,
        device_name=torch.cuda.get_device_name(device),
        busy_us=busy,
        gaps_us=gaps,
        notes=session.notes,
    )


def _caller(workload: Workload) -> Callable[[], object]:
    case = workload.cases[0]
    args, kwargs = clone((case.args, case.kwargs))
    return lambda: workload.model(*args, **kwargs)


def _call_times(model: Callable[[], object], seconds: float) -> list[float]:
    """Microseconds of single calls, each from an idle GPU to an idle GPU: what the CPU is late by is in them."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while len(found) < _MAX_CALLS and (len(found) < _MIN_RUNS or time.monotonic() < end):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        model()
        last.record()
        last.synchronize()
        found.append(1e3 * first.elapsed_time(last))
    return found


@dataclass(frozen=True)
class _Session:
    graphs: list[MarkedGraph]
    model: list[int]  # nanoseconds in which the GPU was busy, one figure a run of the model alone
    recorder: Recorder
    notes: tuple[str, ...] = ()


def _measured(model: Callable[[], object], capture: Capture, call_us: float, seconds: float) -> _Session:
    session = _record(Profiler(), model, capture, call_us, seconds)
    if session is not None:
        return session
    hold_ms = _SLOWER_UNDER_PROFILER * call_us / 1e3
    session = _record(Stamps(hold_ms), model, capture, call_us, seconds)
    assert session is not None  # events are there whenever marks are
    note = (
        "torch's profiler saw no kernels (is CUPTI usable here?): times are by CUDA events, about 1 µs a part too long"
    )
    return _Session(session.graphs, session.model, session.recorder, (note,))


def _record(
    recorder: Recorder, model: Callable[[], object], capture: Capture, call_us: float, seconds: float
) -> _Session | None:
    """The graphs and the model in turn; None where the recorder sees nothing of the GPU."""
    graphs = [MarkedGraph(graph, recorder) for graph in capture.graphs]
    pair = 2 * _SLOWER_UNDER_PROFILER * call_us / 1e6
    count = _WARM + max(_MIN_RUNS, min(_MAX_RUNS, int(seconds / 2 / pair)))

    def alone() -> None:
        with recorder.run(MODEL):
            model()

    def session() -> None:
        for number in range(count):
            turns = [alone, *(graph.run for graph in graphs)]
            for turn in turns if number % 2 else reversed(turns):
                turn()
                torch.cuda.synchronize()

    if not recorder.record(session):
        return None
    for graph in graphs:
        graph.read(skip=_WARM)
    busy = [measured.busy for measured in recorder.runs(MODEL, MODEL + " ")[_WARM:]]
    return _Session(graphs, busy, recorder)


def _line_shares(capture: Capture, recorder: Recorder) -> Sequence[dict[int, dict[str, float]]]:
    passes = [NodePass(graph, recorder) for graph in capture.graphs]

    def session() -> None:
        for _ in range(2):  # the first warms up
            for nodes in passes:
                nodes.execute()

    recorder.record(session)
    return [nodes.line_shares() for nodes in passes]


def _gap_row(gaps: float, total: float) -> RegionRow:
    return RegionRow(
        task=None, fingerprint="", shape_key="", title=GAP, kind="gap", occurrences=1, time_us=gaps,
        share=gaps / total, floor_us=0.0, recoverable_us=0.0, flops=0, min_bytes=0, generator=None,
        reason="no kernel can: CUDA graphs close most of them",
    )  # fmt: skip
