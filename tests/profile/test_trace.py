"""Kernels belong to what launched them: recorded events, and a captured graph run with marks."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile, record_function

from autokernel.graph.capture import capture
from autokernel.profile.marked import MarkedGraph, NodePass
from autokernel.profile.measure_cuda import device_of
from autokernel.profile.recorders import quiet, read, stamped
from autokernel.profile.trace import Kernel, Mark, Measured, Trace, exclusive

RUN, PART = "autokernel run", "autokernel part "

# Two runs of two parts. In the first: an operator's kernel, a kernel launched without an operator, and one of the
# second part that begins on the GPU long after its mark has ended. In the second: a kernel between the parts.
MARKS = (
    Mark(RUN, 0, 100),
    Mark(PART + "0", 10, 40),
    Mark(PART + "1", 50, 90),
    Mark(RUN, 200, 300),
    Mark(PART + "0", 210, 240),
    Mark(PART + "1", 250, 290),
)
OPERATORS = {1: 12, 2: 55, 3: 215, 4: 245, 9: 5}
LAUNCHES = {101: 15, 102: 30, 103: 60, 104: 220, 105: 246}
KERNELS = (
    Kernel("gemm", 1000, 1500, launch=101, operator=1),
    Kernel("triton", 1500, 1600, launch=102),
    Kernel("norm", 1700, 1750, launch=103, operator=2),
    Kernel("gemm", 3000, 3400, launch=104, operator=3),
    Kernel("cast", 3400, 3410, launch=105, operator=4),
)
TRACE = Trace(MARKS, LAUNCHES, OPERATORS, KERNELS)


def test_a_kernel_counts_for_the_mark_that_launched_it_whenever_it_runs():
    first, second = TRACE.runs(RUN, PART)
    assert first == Measured(650, {PART + "0": 600, PART + "1": 50})
    assert second == Measured(410, {PART + "0": 400})


def test_what_is_launched_outside_all_runs_counts_for_none():
    stray = Kernel("stray", 5000, 6000, launch=7, operator=8)
    unknown = Kernel("unknown", 5000, 6000)
    outside = Trace(MARKS, {**LAUNCHES, 7: 150}, {**OPERATORS, 8: 149}, (*KERNELS, stray, unknown))
    assert outside.runs(RUN, PART) == TRACE.runs(RUN, PART)


def test_a_launch_inside_a_mark_counts_though_its_operator_began_before():
    nested = Kernel("inner", 2000, 2100, launch=106, operator=9)
    first, _ = Trace(MARKS, {**LAUNCHES, 106: 20}, OPERATORS, (*KERNELS, nested)).runs(RUN, PART)
    assert first.parts[PART + "0"] == 700


def test_kernels_that_overlap_count_each_instant_once():
    kernels = [Kernel("a", 0, 10), Kernel("inside", 2, 5), Kernel("b", 8, 14), Kernel("apart", 20, 21)]
    assert [(kernel.name, spent) for kernel, spent in exclusive(kernels)] == [
        ("a", 10),
        ("inside", 0),
        ("b", 4),
        ("apart", 1),
    ]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_exclusive_times_sum_to_the_union_of_the_intervals(spans):
    kernels = [Kernel("k", start, start + length) for start, length in spans]
    union = len({instant for start, length in spans for instant in range(start, start + length)})
    assert sum(spent for _, spent in exclusive(kernels)) == union


def event(name, kind, start, end, correlation=0, linked=0, annotation=False):
    return SimpleNamespace(
        name=lambda: name,
        device_type=lambda: kind,
        start_ns=lambda: start,
        end_ns=lambda: end,
        correlation_id=lambda: correlation,
        linked_correlation_id=lambda: linked,
        is_user_annotation=lambda: annotation,
    )


def test_the_profiler_s_events_are_told_apart_though_their_correlations_collide():
    cpu, gpu = DeviceType.CPU, DeviceType.CUDA
    found = read(
        [
            event(RUN, cpu, 0, 100, 1, annotation=True),
            event(PART + "0", cpu, 5, 50, 2, annotation=True),
            event("aten::mm", cpu, 10, 20, 3),
            event("cudaLaunchKernel", cpu, 12, 14, 3, linked=3),
            event("cuLaunchKernelEx", cpu, 30, 31, 4),
            event("gemm", gpu, 200, 300, 3, linked=3),
            event("triton_kernel", gpu, 300, 310, 4),
            event(PART + "0", gpu, 200, 310, annotation=True),
            event("Context Sync", gpu, 310, 900),
        ]
    )
    assert [kernel.name for kernel in found.kernels] == ["gemm", "triton_kernel"]
    assert found.launches == {3: 12, 4: 30}
    assert found.runs(RUN, PART) == [Measured(110, {PART + "0": 110})]


def test_marks_and_operators_of_a_real_recording_are_read():
    x = torch.ones(8, 8)
    with quiet(), profile(use_kineto=True) as profiler:
        for _ in range(2):
            with record_function(RUN), record_function(PART + "0"):
                x @ x
    found = read(profiler.kineto_results.events())
    assert [mark.name for mark in found.marks] == [RUN, PART + "0"] * 2
    assert all(mark.start < mark.end for mark in found.marks)
    assert found.kernels == ()
    inside = found.marks[1]
    products = {number: start for number, start in found.operators.items() if inside.start < start < inside.end}
    kernel = Kernel("gemm", 10**12, 10**12 + 7, operator=next(iter(products)))
    with_kernel = Trace(found.marks, found.launches, found.operators, (kernel,))
    assert with_kernel.runs(RUN, PART) == [Measured(7, {PART + "0": 7}), Measured()]


def test_stamps_are_grouped_by_the_run_they_follow():
    marks = [("other", 9.0), (RUN, 2.0), (PART + "0", 0.5), (PART + "0", 0.5), (PART + "1", 1.0), (RUN, 1.0)]
    assert stamped(marks, RUN, PART) == [
        Measured(2_000_000, {PART + "0": 1_000_000, PART + "1": 1_000_000}),
        Measured(1_000_000),
    ]


class Clock:
    """A recorder that takes the CPU's time for the GPU's."""

    def __init__(self):
        self.marks = []

    @contextmanager
    def part(self, name):
        number = len(self.marks)
        self.marks.append(None)
        begin = time.perf_counter()
        yield
        self.marks[number] = (name, 1e3 * (time.perf_counter() - begin))

    run = part

    def record(self, session):
        self.marks.clear()
        session()
        return bool(self.marks)

    def runs(self, run, part):
        return stamped(self.marks, run, part)


@pytest.fixture(scope="module")
def captured():
    class Two(nn.Module):
        def forward(self, x):
            y = torch.softmax(x, -1)
            for _ in range(3):
                y = y @ x
            return y + 1

    return capture(Two(), (torch.randn(300, 300),)).graphs[0]


def test_a_marked_graph_gives_every_part_its_time_in_every_run_but_the_skipped(captured):
    clock = Clock()
    graph = MarkedGraph(captured, clock)
    assert clock.record(lambda: [graph.run() for _ in range(5)])
    graph.read(skip=2)
    assert len(graph.total) == 3
    assert {len(part.spent) for part in graph.parts} == {3}
    for run, total in enumerate(graph.total):
        assert 0.5 * total < sum(part.spent[run] for part in graph.parts) <= total
    assert {part.region.title for part in graph.parts if part.region} >= {"matmul"}


def test_a_pass_over_single_operators_gives_source_lines_their_shares(captured):
    clock = Clock()
    nodes = NodePass(captured, clock)
    clock.record(lambda: [nodes.execute() for _ in range(2)])
    shares = nodes.line_shares()
    assert set(shares) == {region.index for region in captured.regions}
    for region in captured.regions:
        assert sum(shares[region.index].values()) == pytest.approx(1)
        assert set(shares[region.index]) <= set(region.lines)


def test_a_graph_on_the_cpu_has_no_gpu(captured):
    assert device_of(SimpleNamespace(graphs=(captured,))) is None
