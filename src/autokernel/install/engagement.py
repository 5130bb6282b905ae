"""Which of our operators the dispatcher really ran in one call: torch's profiler, read by name.

A count of replaced places proves nothing: a graph may be cached, another graph may run, a guard may turn calls away.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


def calls_seen(call: Callable[[], object], names: frozenset[str]) -> Counter[str]:
    """Run `call` once under the profiler; how often each operator of `names` ("autokernel::x") was dispatched."""
    with _quiet(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        call()
    return Counter(event.name for event in profiler.events() or () if event.name in names)


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's library logs its start and stop on stderr unless told otherwise before its first use."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
