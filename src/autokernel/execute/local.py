"""Judging on this process's own device, one job at a time, in the caller's thread.

There is one device, and timing wants it alone, so nothing is gained by a queue; and a signal (Ctrl-C) can end a job at
once, which a worker thread would make impossible. The futures returned are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from autokernel.execute import Bench, Comparison, Job
from autokernel.records import Timing, Verdict

T = TypeVar("T")


class LocalExecutor:
    """`open_bench(folder)` makes the judge of one task; it is kept until `close`, which ends with `on_close`."""

    def __init__(self, open_bench: Callable[[Path], Bench], on_close: Callable[[], None] = lambda: None) -> None:
        self._open = open_bench
        self._on_close = on_close
        self._benches: dict[str, Bench] = {}
        self._last: str | None = None

    def submit(self, job: Job) -> Future[Verdict]:
        return _done(lambda: self._bench(job.folder).judge(job))

    def compare(self, comparison: Comparison) -> Future[Timing]:
        return _done(lambda: self._bench(comparison.folder).compare(comparison))

    def prefetch(self, folder: str, sources: Sequence[str]) -> None:
        if folder not in self._benches:
            self._benches[folder] = self._open(Path(folder))
        self._benches[folder].prefetch(sources)

    def close(self) -> None:
        while self._benches:
            _, bench = self._benches.popitem()
            bench.close()
        self._on_close()

    def _bench(self, folder: str) -> Bench:
        if folder not in self._benches:
            self._benches[folder] = self._open(Path(folder))
        if self._last not in (None, folder) and self._last in self._benches:
            self._benches[self._last].rest()
        self._last = folder
        return self._benches[folder]


def _done(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(work())
    except Exception as error:  # handed on by future.result(); an interrupt is not an Exception and passes through
        future.set_exception(error)
    return future
