"""Capture, partition, fingerprint and printing of a model's graph. Door: the two dataclasses and the functions below.

One partitioner serves both directions: `capture` cuts the graph to make tasks, and `install` cuts the graph that
Dynamo hands it with the same function, so that a kernel matches by fingerprint and shape key, by construction.

    capture.py     capture(model, args, kwargs) -> Capture; to_aten(gm, inputs) -> functional ATen (the one file with
                   private torch APIs); make_backend(handler) -> a torch.compile backend
    partition.py   partition(module, graph=0) -> tuple[Region, ...]: convex regions covering every compute node
    lower.py       lower(function, inputs) -> GraphModule in a small closed operator set
    fingerprint.py fingerprint(lowered) -> (fingerprint, shape_key)
    count.py       count(module) -> (flops, min_bytes)
    printer.py     print_reference(module, names, lines) -> the text of a reference.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx


@dataclass(frozen=True)
class Region:
    """A convex part of a captured graph, cut out as a module of its own.

    `module` is functional ATen as captured (composite operators whole); its placeholders correspond to `inputs` in
    order and are named as `reference.py` names them; it returns a tuple in the order of `outputs`. All of its nodes
    have `meta["val"]`. View-only nodes between an input and its first use are inside (an index map costs nothing).
    """

    graph: int
    index: int
    kind: str  # "pointwise" | "row" | "other" (opaque: matmul, convolution, fused attention, embedding, ...)
    title: str  # "add → rms norm"; for opaque regions the operator, "linear"
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    module: fx.GraphModule
    fingerprint: str
    shape_key: str
    flops: int
    min_bytes: int
    lines: tuple[str, ...]  # the user's source lines, "path.py:42  code"


@dataclass(frozen=True)
class CapturedGraph:
    """One graph that Dynamo produced: the functional ATen module and its regions, in topological order.

    `module(*inputs)` runs it: `inputs` are the real flat inputs of its first call (parameters and buffers included),
    copied where the graph mutates them. Placeholders carry `meta["role"]` and `meta["path"]`. `calls`: how often the
    model runs this graph in one call (after a graph break the layers of a model may share one).
    """

    index: int
    module: fx.GraphModule
    regions: tuple[Region, ...]
    inputs: tuple[Any, ...] = ()
    calls: int = 1


@dataclass(frozen=True)
class Skipped:
    """Something that was left as the user wrote it, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Capture:
    graphs: tuple[CapturedGraph, ...]
    skipped: tuple[Skipped, ...] = ()
