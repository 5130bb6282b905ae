"""A captured graph with a mark around each region and operator, for a recorder of GPU time to attribute kernels by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from autokernel.graph import CapturedGraph
from autokernel.graph.replace import split
from autokernel.profile.recorders import PREFIX, Recorder
from autokernel.profile.timed import Part, TimedGraph, by_line, instrument


class MarkedGraph(TimedGraph):
    """`run()` leaves marks; `read()` fills `total` and the parts' `spent` with the GPU's nanoseconds, one a run."""

    def __init__(self, captured: CapturedGraph, recorder: Recorder) -> None:
        self.recorder = recorder
        self.name = f"{PREFIX}graph {captured.index}"
        self.prefix = f"{PREFIX}part {captured.index}."
        module, parts = instrument(captured, self._mark)
        forward, inputs = module.forward, captured.inputs

        def run() -> None:
            with self.recorder.run(self.name):
                forward(*inputs)

        super().__init__(captured, parts, [], run)

    def _mark(self, function: Callable[..., Any], part: Part, number: int) -> Callable[..., Any]:
        name = f"{self.prefix}{number}"

        def marked(*args: Any, **kwargs: Any) -> Any:
            with self.recorder.part(name):
                return function(*args, **kwargs)

        return marked

    def read(self, skip: int) -> None:
        """Take the figures of all runs but the first `skip` from the recorder."""
        self.clear()
        for measured in self.recorder.runs(self.name, self.prefix)[skip:]:
            self.total.append(measured.busy)
            for number, part in enumerate(self.parts):
                part.spent.append(measured.parts.get(f"{self.prefix}{number}", 0))


class NodePass(fx.Interpreter):
    """Runs a graph with a mark around every operator of every region, for the regions' source lines."""

    def __init__(self, captured: CapturedGraph, recorder: Recorder) -> None:
        super().__init__(split(captured))
        self.captured, self.recorder = captured, recorder
        self.name = f"{PREFIX}nodes {captured.index}"
        self.prefix = f"{PREFIX}node {captured.index}."

    def execute(self) -> None:
        with self.recorder.run(self.name):
            self.run(*self.captured.inputs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _Region(self.fetch_attr(target), f"{self.prefix}{target}.", self.recorder).run(*args, **kwargs)

    def line_shares(self) -> dict[int, dict[str, float]]:
        """Region index → source line → its part of the region's time, as `timed.line_shares`; from the last run."""
        found = self.recorder.runs(self.name, self.prefix)
        spent = found[-1].parts if found else {}
        shares = {}
        for region in self.captured.regions:
            prefix = f"{self.prefix}region_{region.index}."
            times = {node: spent.get(f"{prefix}{node.name}", 0) for node in region.module.graph.nodes}
            shares[region.index] = by_line(times, region.lines)
        return shares


class _Region(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, prefix: str, recorder: Recorder) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.prefix, self.recorder = prefix, recorder

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with self.recorder.part(f"{self.prefix}{n.name}"):
            return super().run_node(n)
