"""Two ways to learn what a GPU did between marks: torch's profiler (CUPTI), and CUDA events where that sees nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile, record_function

from autokernel.profile.trace import Kernel, Mark, Measured, Trace

PREFIX = "autokernel "  # of every mark's name
_RUNTIME = re.compile(r"(cu|cuda|hip)[A-Z]")  # cudaLaunchKernel, cuLaunchKernelEx; operators are "aten::..."
_NOT_WORK = (" Sync", "Stream Wait Event")  # on the GPU's track of some versions, but nothing runs meanwhile
_LONGEST_HOLD_MS = 200.0


class Recorder(Protocol):
    """Marks around what is launched, and afterwards the GPU time in each."""

    def run(self, name: str) -> AbstractContextManager[object]:
        """Around a whole run; may wait, so that what is launched inside comes without gaps."""
        ...

    def part(self, name: str) -> AbstractContextManager[object]: ...

    def record(self, session: Callable[[], None]) -> bool:
        """Run `session` and record it; False where nothing was seen on the GPU. Forgets what was before."""
        ...

    def runs(self, run: str, part: str) -> list[Measured]:
        """As `Trace.runs`."""
        ...


class Profiler:
    """Kernel durations as CUPTI has them: neither the CPU's lateness nor the marks are in them."""

    def __init__(self) -> None:
        self.trace = Trace((), {}, {}, ())

    def run(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)

    part = run

    def record(self, session: Callable[[], None]) -> bool:
        with quiet(), profile(use_device="cuda", use_kineto=True) as profiler:
            session()
        assert profiler.kineto_results is not None
        self.trace = read(profiler.kineto_results.events())
        return bool(self.trace.kernels)

    def runs(self, run: str, part: str) -> list[Measured]:
        return self.trace.runs(run, part)


def read(events: Iterable[Any]) -> Trace:
    """A `Trace` from the events of torch's profiler (`torch._C._autograd._KinetoEvent`)."""
    marks: list[Mark] = []
    kernels: list[Kernel] = []
    launches: dict[int, int] = {}
    operators: dict[int, int] = {}
    for event in events:
        name, start = event.name(), event.start_ns()
        if event.device_type() == DeviceType.CPU:
            (launches if _RUNTIME.match(name) else operators)[event.correlation_id()] = start
            if name.startswith(PREFIX):
                marks.append(Mark(name, start, event.end_ns()))
        elif not (event.is_user_annotation() or name.startswith(PREFIX) or name.endswith(_NOT_WORK)):
            kernels.append(Kernel(name, start, event.end_ns(), event.correlation_id(), event.linked_correlation_id()))
    return Trace(tuple(marks), launches, operators, tuple(kernels))


class Stamps:
    """CUDA events before and after each mark, on the current stream. The GPU is held at the start of each run until the
    CPU is ahead, so that the times are of kernels and not of waiting; a mark costs about a microsecond in them."""

    def __init__(self, hold_ms: float) -> None:
        clock_khz = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "clock_rate", 0) or 1_500_000
        self._cycles = int(min(hold_ms, _LONGEST_HOLD_MS) * clock_khz)
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda._sleep(self._cycles)
        with self.part(name):
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._marks.append((name, begin, end))  # in order of their begin: a run before its parts
        begin.record()
        yield
        end.record()

    def record(self, session: Callable[[], None]) -> bool:
        self._marks.clear()
        session()
        torch.cuda.synchronize()
        return bool(self._marks)

    def runs(self, run: str, part: str) -> list[Measured]:
        return stamped([(name, begin.elapsed_time(end)) for name, begin, end in self._marks], run, part)


def stamped(marks: Iterable[tuple[str, float]], run: str, part: str) -> list[Measured]:
    """`Measured` from names and milliseconds, in order of their begin: a run's parts follow it."""
    found: list[Measured] = []
    for name, spent in marks:
        nanoseconds = round(1e6 * spent)
        if name == run:
            found.append(Measured(busy=nanoseconds))
        elif name.startswith(part) and found:
            parts = found[-1].parts
            parts[name] = parts.get(name, 0) + nanoseconds
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """The profiler's library logs its start and stop on stderr unless told otherwise before its first use."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
