"""Which of our kernels really ran in one call of the model: torch's profiler, read by name.

A count of replaced places proves nothing: a graph may be cached, another graph may run, a guard may turn calls away.
Dispatches of our operators are counted on the CPU. On CUDA a replayed graph dispatches nothing, so the device's own
record of launched kernels is read too: an operator counts only when a kernel of its source was seen on the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from autokernel.profile.recorders import quiet


def calls_seen(call: Callable[[], object], names: frozenset[str]) -> Counter[str]:
    """Run `call` once under the profiler; how often each operator of `names` ("autokernel::x") was dispatched."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        call()
    return Counter(event.name for event in profiler.events() or () if event.name in names)


def launches_seen(call: Callable[[], object], names: frozenset[str]) -> tuple[Counter[str], Counter[str]]:
    """The same on CUDA: dispatches of the operators `names`, and how often each kernel ran on the device by name."""
    dispatched: Counter[str] = Counter()
    launched: Counter[str] = Counter()
    for _ in range(2):  # the first use of the device's profiler in a process may record nothing of the device
        torch.cuda.synchronize()
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with quiet(), profile(activities=activities, acc_events=True) as profiler:
            call()
            torch.cuda.synchronize()
        dispatched, launched = sort_events(profiler.events() or (), names)
        if launched:
            break
    return dispatched, launched


def sort_events(events: Iterable[Any], names: frozenset[str]) -> tuple[Counter[str], Counter[str]]:
    """The profiler's events (`name`, `device_type`): dispatches of `names`, and what ran on the device by name."""
    dispatched: Counter[str] = Counter()
    launched: Counter[str] = Counter()
    for event in events:
        if event.device_type == DeviceType.CUDA:
            launched[event.name] += 1
        elif event.name in names:
            dispatched[event.name] += 1
    return dispatched, launched


def attribute(
    dispatched: Mapping[str, int],
    launched: Mapping[str, int],
    kernels: Mapping[str, frozenset[str]],
    places: Mapping[str, int],
) -> dict[str, int]:
    """Task id → calls of its kernel that these counts prove. Pure.

    dispatched: task → calls of its operator; launched: kernel name → runs on the device; kernels: task → names of the
    kernels in its source; places: task → places of the graph it stands in. Where the operator was dispatched, that
    count stands if one of its kernels ran. Under a replayed graph the runs of its most frequent kernel count; runs of
    a name that several tasks share count for one only as far as they are more than all places of the others.
    """
    found = {}
    for task, names in kernels.items():
        seen = max((_provably(task, name, launched.get(name, 0), kernels, places) for name in names), default=0)
        ran = any(launched.get(name, 0) for name in names)
        calls = dispatched.get(task, 0)
        found[task] = (calls if ran else 0) if calls else seen
    return found


def _provably(task: str, name: str, runs: int, kernels: Mapping[str, frozenset[str]], places: Mapping[str, int]) -> int:
    others = sum(places[other] for other, names in kernels.items() if other != task and name in names)
    return max(0, runs - others)
