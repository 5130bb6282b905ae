"""The child's side on a GPU: shared memory opened, launches waited for, and a pass over all sets as one CUDA graph.

Everything here runs in the candidate's process, and may be patched by it: what it says is a claim. The parent looks at
the outputs.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autokernel.judge.buffers import Layout
from autokernel.judge.cuda_buffers import device_view
from autokernel.judge.cuda_memory import open_handle, over
from autokernel.judge.protocol import Problem
from autokernel.languages.triton.folders import place

Call = Callable[[], None]


def begin(job: dict[str, Any]) -> None:
    """This process's context, and compiler caches of its own (filled with what was compiled for its kernel)."""
    folder = tempfile.mkdtemp(prefix="kernels-")
    for name, source in job["caches"].items():
        target = os.path.join(folder, name)
        os.mkdir(target)
        if source is not None:
            place(Path(source), Path(target))
        os.environ[name] = target
    torch.cuda.init()
    torch.cuda.set_device(job["index"])
    torch.empty(1, device="cuda")  # the context itself


def map_layouts(layouts: Sequence[Layout], fds: Sequence[int]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Inputs and outputs of each set: in the parent's device memory, or (a set without a handle) in copies of what the
    descriptors, one each, name."""
    left = iter(fds)
    found = []
    for layout in layouts:
        if layout.handle is not None:
            memory = over(open_handle(layout.handle), layout.size)
        else:
            shared = mmap.mmap(next(left), layout.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            host = torch.frombuffer(shared, dtype=torch.uint8, count=layout.size)
            memory = torch.empty(layout.size, dtype=torch.uint8, device="cuda")
            _copied.append((host, memory))
        views = [device_view(memory, s) for s in layout.inputs], [device_view(memory, s) for s in layout.outputs]
        found.append(views)
    return found


_copied: list[tuple[Tensor, Tensor]] = []  # shared memory of the CPU, and its copy on the device


def _to_device() -> None:
    for host, memory in _copied:
        memory.copy_(host)


def _to_host() -> None:
    for host, memory in _copied:
        host.copy_(memory)


class Unjoined(Exception):
    """A launch left work on a stream that the caller's doesn't wait for."""

    problem = Problem.late_write


_LAUNCHES = 64  # in a graph, at least: from one graph to the next takes longer than from kernel to kernel
_SLOW_PASS = 0.002  # seconds, from which that no longer shows


class GraphRunner:
    """Launches over the sets, waited for; and passes over all of them, captured once. `remark`: why not captured.

    Where a pass has few launches, several of them are captured as one more graph.
    """

    def __init__(self, calls: Sequence[Call], flush: Call | None) -> None:
        self.calls = list(calls)
        self.flush = _flushing(flush) if flush is not None else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.several: torch.cuda.CUDAGraph | None = None
        self.passes = 1  # in `several`
        self.remark = ""

    def run(self, first: int, count: int) -> float:
        """`count` launches from set `first` on, one after the other. Seconds by events (a claim)."""
        order = [self.calls[(first + i) % len(self.calls)] for i in range(count)]

        def launch() -> None:
            for call in order:
                call()

        return _timed(launch)

    def replay(self, passes: int) -> float:
        """`passes` times every set. Seconds by events (a claim)."""
        if self.graph is None and not self.remark:
            self._capture()
        graph, several = self.graph, self.several
        if graph is None or several is None:
            return _timed(lambda: _repeat(graph.replay if graph is not None else self._plain, passes))
        whole, rest = divmod(passes, self.passes)

        def work() -> None:
            _repeat(several.replay, whole)
            _repeat(graph.replay, rest)

        return _timed(work)

    def _capture(self) -> None:
        self.graph = self._captured(self._plain)
        passes = -(-_LAUNCHES // len(self.calls))
        if self.graph is None or passes == 1:
            return
        self.graph.replay()
        if _timed(self.graph.replay) < _SLOW_PASS:
            self.several = self._captured(lambda: _repeat(self._plain, passes))
            self.passes = passes

    def part(self, count: int) -> float:
        """One pass over the first `count` sets, captured by itself."""
        graph = self._captured(lambda: self._plain(count)) if not self.remark else None
        return _timed(graph.replay if graph is not None else lambda: self._plain(count))

    def _plain(self, count: int | None = None) -> None:
        for call in self.calls[:count]:
            call()

    def _captured(self, launches: Call) -> torch.cuda.CUDAGraph | None:
        launches()  # whatever a first call sets up
        torch.cuda.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                launches()
        except Exception as error:
            torch.cuda.set_stream(stream)  # a capture that fails to end leaves its own in force
            if "unjoined" in str(error).lower():
                raise Unjoined("launch returned while work on another stream was not joined") from error
            self.remark = f"no CUDA graph: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            torch.cuda.synchronize()
            return None
        return graph


def _flushing(flush: Call) -> Call:
    def both() -> None:
        flush()
        _to_host()

    return both


def _repeat(call: Call, count: int) -> None:
    for _ in range(count):
        call()


def _timed(work: Call) -> float:
    _to_device()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()  # this stream alone, as whoever uses the outputs next will wait
    _to_host()
    return max(float(begin.elapsed_time(end)), 0.0) / 1e3
