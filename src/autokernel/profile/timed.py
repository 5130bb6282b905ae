"""A captured graph with a clock around each region and each named operator that belongs to none.

The graph runs as compiled Python with composite operators whole, so the kernels are eager's own. The clock is read
twice a part (about 0.1 µs); what lies between the parts is Python and is attributed to nothing.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from autokernel.graph import CapturedGraph, Region
from autokernel.graph.naming import source_lines
from autokernel.graph.replace import split

_clock = time.perf_counter_ns


@dataclass
class Part:
    """A region, or a named operator outside all regions (`region` None). `spent`: nanoseconds, one figure a run."""

    name: str
    region: Region | None
    lines: tuple[str, ...]
    spent: list[int] = field(default_factory=list)


@dataclass
class TimedGraph:
    """`run()` is one run of the graph on its recorded inputs; `total` holds its nanoseconds, `parts` those inside."""

    captured: CapturedGraph
    parts: list[Part]
    total: list[int]
    run: Callable[[], None]

    def clear(self) -> None:
        self.total.clear()
        for part in self.parts:
            part.spent.clear()

    def mean_us(self, part: Part, runs: Sequence[int]) -> float:
        """Microseconds of a part in one call of the model, averaged over the runs with these numbers."""
        return self.captured.calls * statistics.fmean(part.spent[run] for run in runs) / 1e3


Around = Callable[[Callable[..., Any], Part, int], Callable[..., Any]]  # function, its part, the part's number


def timed(captured: CapturedGraph) -> TimedGraph:
    """The graph ready to be run and timed on the inputs it was captured with."""
    module, parts = instrument(captured, _clocked)
    forward, inputs, total = module.forward, captured.inputs, []

    def run() -> None:
        begin = _clock()
        forward(*inputs)
        total.append(_clock() - begin)

    return TimedGraph(captured, parts, total, run)


def instrument(captured: CapturedGraph, around: Around) -> tuple[fx.GraphModule, list[Part]]:
    """The graph with `around(function, part, number)` in the place of each region and named operator."""
    module = split(captured)
    regions = {f"region_{region.index}": region for region in captured.regions}
    nodes = [node for node in module.graph.nodes if _computes(node)]
    parts = [_wrapped(module, node, regions, around, number) for number, node in enumerate(nodes)]
    module.recompile()
    return module, parts


def _computes(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_module") and node.target is not operator.getitem


def _wrapped(module: fx.GraphModule, node: fx.Node, regions: dict[str, Region], around: Around, number: int) -> Part:
    if node.op == "call_module":
        region: Region | None = regions[str(node.target)]
        function: Callable[..., Any] = module.get_submodule(str(node.target)).forward
        part = Part(region.title if region else "", region, region.lines if region else ())
    else:
        assert callable(node.target)
        function = node.target
        part = Part(operator_name(node), None, source_lines([node]))
    node.op, node.target = "call_function", around(function, part, number)
    return part


def _clocked(function: Callable[..., Any], part: Part, number: int) -> Callable[..., Any]:
    spent = part.spent

    def clocked(*args: Any, **kwargs: Any) -> Any:
        begin = _clock()
        result = function(*args, **kwargs)
        spent.append(_clock() - begin)
        return result

    return clocked


def operator_name(node: fx.Node) -> str:
    """ "aten.view" for an operator's overload; a function's own name otherwise."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(node.target, "__name__", node.target))


class _NodeClock(fx.Interpreter):
    """Runs a region operator by operator; `spent` keeps each node's fastest time over the runs, nanoseconds."""

    def __init__(self, module: fx.GraphModule, spent: dict[fx.Node, int]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.spent = spent
        self.current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        begin = _clock()
        result = target(*args, **kwargs)
        elapsed = _clock() - begin
        if self.current is not None:
            self.spent[self.current] = min(elapsed, self.spent.get(self.current, elapsed))
        return result


class _RegionPass(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, spent: dict[str, dict[fx.Node, int]]) -> None:
        super().__init__(module)
        self.spent = spent

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        return _NodeClock(module, self.spent.setdefault(target, {})).run(*args, **kwargs)


def line_shares(captured: CapturedGraph, repeats: int = 3) -> dict[int, dict[str, float]]:
    """Region index → source line → its part of the region's time, from a pass that times single operators."""
    module = split(captured)
    spent: dict[str, dict[fx.Node, int]] = {}
    for _ in range(repeats):
        _RegionPass(module, spent).run(*captured.inputs)
    return {region.index: by_line(spent.get(f"region_{region.index}", {}), region.lines) for region in captured.regions}


def by_line(spent: dict[fx.Node, int], known: Sequence[str]) -> dict[str, float]:
    """A region's source lines, each with its part of the time; `known`: the region's lines, where a node has none."""
    total = sum(spent.values())
    shares: dict[str, float] = {}
    for node, elapsed in spent.items():
        line = next(iter(source_lines([node])), known[0] if known else "")
        if line and total:
            shares[line] = shares.get(line, 0.0) + elapsed / total
    return shares
