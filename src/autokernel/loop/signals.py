"""Ctrl-C, SIGTERM and SIGHUP: the first one ends the run cleanly, the second one at once.

While the author writes or the judge measures, a signal raises `Stopped` there and then, so that the experiment in
flight is given up within a moment. While the journal is being written it only sets the flag. `Stopped` is not an
Exception: an author's `except Exception` can't swallow it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):
    """The run was asked to end."""


class StopFlag:
    """Whether a run was asked to end, and by what. `stop` may be called from any thread."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._interruptible = False

    def __bool__(self) -> bool:
        return self.reason is not None

    def stop(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises Stopped in the main thread; a stop that came before raises at once."""
        before, self._interruptible = self._interruptible, True
        try:
            if self:
                raise Stopped(self.reason)
            yield
        finally:
            self._interruptible = before

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Inside an interruptible part: a stretch that a signal must not cut in two."""
        before, self._interruptible = self._interruptible, False
        try:
            yield
        finally:
            self._interruptible = before

    def on_signal(self, number: int) -> None:
        again = bool(self)
        self.stop(signal.Signals(number).name)
        if again:
            raise KeyboardInterrupt
        if self._interruptible:
            raise Stopped(self.reason)


@contextlib.contextmanager
def caught(stop: StopFlag) -> Iterator[StopFlag]:
    """Route the signals to `stop` while inside; earlier handlers come back. Does nothing outside the main thread.

    A signal that the process was started to ignore (nohup's SIGHUP) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop.on_signal(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
