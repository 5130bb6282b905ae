"""The records of a profile from what was timed: rows by recoverable time, and source lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from autokernel.graph import Region
from autokernel.profile.timed import Part, TimedGraph
from autokernel.records import Ceilings, LineRow, RegionRow


class Covered(Protocol):
    """What a generator says of a region (`generate.Coverage`)."""

    @property
    def kind(self) -> str | None: ...

    @property
    def reason(self) -> str: ...


Coverage = Callable[[Region], Covered]


@dataclass
class _Group:
    """All occurrences of one fingerprint, or of one named operator outside the regions."""

    first: Part
    time_us: float = 0.0
    occurrences: int = 0


def region_rows(
    graphs: Sequence[TimedGraph], runs: Sequence[int], total_us: float, ceilings: Ceilings, coverage: Coverage
) -> tuple[RegionRow, ...]:
    """One row for each distinct region and each named operator, most recoverable time first.

    `runs`: the numbers of the runs that are averaged. Means over one set of runs add up to the mean of the total.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    for graph in graphs:
        for part in graph.parts:
            region = part.region
            key = (region.fingerprint, region.shape_key) if region is not None else (part.name,)
            group = groups.setdefault(key, _Group(part))
            group.time_us += graph.mean_us(part, runs)
            group.occurrences += graph.captured.calls
    rows = [_row(group, total_us, ceilings, coverage) for group in groups.values()]
    return tuple(sorted(rows, key=lambda row: (-row.recoverable_us, -row.time_us, row.title)))


def _row(group: _Group, total_us: float, ceilings: Ceilings, coverage: Coverage) -> RegionRow:
    region, count = group.first.region, group.occurrences
    share = group.time_us / total_us
    if region is None:
        return RegionRow(
            task=None, fingerprint="", shape_key="", title=group.first.name, kind="operator", occurrences=count,
            time_us=group.time_us, share=share, floor_us=0.0, recoverable_us=0.0, flops=0, min_bytes=0, generator=None,
            reason="a view or write-back between regions: there is no arithmetic to speed up", lines=group.first.lines,
        )  # fmt: skip
    dtype = _dtype(region)
    floor = count * ceilings.floor_us(region.flops, region.min_bytes, dtype)
    covered = coverage(region)
    return RegionRow(
        task=None,
        fingerprint=region.fingerprint,
        shape_key=region.shape_key,
        title=region.title,
        kind=region.kind,
        occurrences=count,
        time_us=group.time_us,
        share=share,
        floor_us=floor,
        recoverable_us=max(group.time_us - floor, 0.0),
        flops=region.flops,
        min_bytes=region.min_bytes,
        generator=covered.kind,
        reason=covered.reason if covered.kind is None else "",
        lines=region.lines,
        dtype=dtype,
    )


def _dtype(region: Region) -> str:
    """The dtype whose matrix rate bounds the region: that of its largest floating tensor."""
    values = [node.meta.get("val") for node in (*region.inputs, *region.outputs)]
    floats = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    largest = max(floats, key=lambda value: int(value.numel()), default=None)
    return str(largest.dtype if largest is not None else torch.float32).removeprefix("torch.")


def line_rows(
    graphs: Sequence[TimedGraph], runs: Sequence[int], shares: Sequence[dict[int, dict[str, float]]], total_us: float
) -> tuple[LineRow, ...]:
    """The time of each source line, longest first: a region's time split over its lines by single operators' times."""
    lines: dict[str, float] = {}
    for graph, by_region in zip(graphs, shares, strict=True):
        for part in graph.parts:
            spent = graph.mean_us(part, runs)
            parts = by_region.get(part.region.index, {}) if part.region is not None else {}
            if not parts and part.lines:
                parts = {part.lines[0]: 1.0}
            for line, share in parts.items():
                lines[line] = lines.get(line, 0.0) + share * spent
    rows = (LineRow(line=line, time_us=spent, share=spent / total_us) for line, spent in lines.items())
    return tuple(sorted(rows, key=lambda row: (-row.time_us, row.line)))
