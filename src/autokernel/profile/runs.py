"""Averages over runs that are kept together: the quieter half, so that means of parts add up to the mean of all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autokernel.graph import Capture
from autokernel.profile.timed import TimedGraph


def quiet_half(spent: Sequence[int]) -> list[int]:
    """Numbers of the faster half of the runs."""
    order = sorted(range(len(spent)), key=spent.__getitem__)
    return order[: max(2, len(order) // 2)]


def mean_us(spent: Sequence[int], runs: Sequence[int]) -> float:
    return statistics.fmean(spent[run] for run in runs) / 1e3


def instrumented(graphs: Sequence[TimedGraph]) -> list[int]:
    """Nanoseconds in all graphs, one figure a run; a graph that the model calls several times counts as often."""
    return [
        sum(graph.captured.calls * spent for graph, spent in zip(graphs, run, strict=True))
        for run in zip(*(graph.total for graph in graphs), strict=True)
    ]


def skipped(capture: Capture, outside: float, total: float) -> tuple[str, ...]:
    """What was not captured, with its reason, and how much time that is."""
    found = [f"{part.what}: {part.reason}" for part in capture.skipped]
    if outside:
        found.append(f"outside the captured graphs: {outside / 1e3:.3g} ms ({100 * outside / total:.1f} %)")
    return tuple(found)
