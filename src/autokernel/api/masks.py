"""The masks of a model's attention: in its captured graphs, and in a call of it that nothing traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autokernel.graph import Capture, CapturedGraph
from autokernel.records import MaskKind, MaskRow, Profile, RegionRow
from autokernel.workload import Workload

if TYPE_CHECKING:
    from torch import fx

    from autokernel.rewrite import Finding


def mask_rows(workload: Workload, capture: Capture, profile: Profile) -> tuple[MaskRow, ...]:
    """One row for the attentions that are alike, the costliest first; none where no attention is handed a mask.

    The model is called once more, to see what it hands its attention while nothing traces. `profile`: of the
    workload's first case, for the times. Raises what the user's own model raises.
    """
    from autokernel.rewrite.attention import pin_attention
    from autokernel.rewrite.masks import SDPA

    findings: dict[tuple[int, str], Finding] = {}
    for graph in capture.graphs:
        folded = pin_attention(graph.module, lambda site: None, differentiated=False)
        findings.update({(graph.index, finding.node): finding for finding in folded.findings})
    if not findings:
        return ()
    attentions = [
        (graph, node)
        for graph in capture.graphs
        for node in graph.module.graph.find_nodes(op="call_function", target=SDPA)
    ]
    eager = same_calls(_eager(workload), [graph.calls for graph, _ in attentions])
    rows = {(row.fingerprint, row.shape_key): row for row in profile.regions}
    grouped: dict[MaskRow, MaskRow] = {}
    for (graph, node), kind in zip(attentions, eager, strict=True):
        found = findings.get((graph.index, node.name))
        if found is not None:
            row, time_us = _row(graph, node, found, kind, rows)
            grouped[row] = _more(grouped.get(row, row), graph.calls, time_us, profile.total_us)
    return tuple(sorted(grouped.values(), key=lambda row: -row.time_us))


def same_calls(eager: tuple[MaskKind, ...], calls: list[int]) -> list[MaskKind | None]:
    """What eager hands each attention of the graphs, which runs `calls` times; None where that can't be told.

    One to one where there are as many as in the graphs, and each runs once; else only what all of them have in common.
    """
    if len(eager) == len(calls) and set(calls) == {1}:
        return list(eager)
    kinds = set(eager)
    return [kinds.pop() if len(kinds) == 1 else None] * len(calls)


def _eager(workload: Workload) -> tuple[MaskKind, ...]:
    from autokernel.profile.state import clone, keeping_buffers
    from autokernel.rewrite.seen import eager_masks

    case = workload.cases[0]
    args, kwargs = clone((case.args, case.kwargs))
    with keeping_buffers(workload.model):
        return eager_masks(lambda: workload.model(*args, **kwargs))


def _row(
    graph: CapturedGraph, node: fx.Node, found: Finding, eager: MaskKind | None, rows: dict[tuple[str, str], RegionRow]
) -> tuple[MaskRow, float]:
    """The row that the attention belongs to, still without figures, and its microseconds in a call of the model."""
    from autokernel.graph.naming import source_lines
    from autokernel.rewrite.masks import arguments
    from autokernel.rewrite.seen import traced_as

    query = arguments(node)["query"].meta["val"]
    region = next((region for region in graph.regions if node in region.nodes), None)
    timed = rows.get((region.fingerprint, region.shape_key)) if region is not None else None
    row = MaskRow(
        count=0,
        folds_to=found.became,
        reason=found.reason,
        eager=eager,
        traced_as=traced_as(node) if query.device.type == "cuda" else None,  # the CPU's one fused kernel takes masks
        dtype=str(query.dtype).removeprefix("torch."),
        lines=tuple(source_lines([node])),
    )
    return row, graph.calls * timed.time_us / timed.occurrences if timed is not None else 0.0


def _more(row: MaskRow, calls: int, time_us: float, total_us: float) -> MaskRow:
    spent = row.time_us + time_us
    return row.model_copy(update={"count": row.count + calls, "time_us": spent, "share": spent / total_us})
