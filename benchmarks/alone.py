"""One kernel file, timed in a process of its own by the usual means: do_bench, torch's profiler, or once for ncu.

Started by `clock.py`, while the process that judges leaves the GPU idle. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda:0"
LEAST_CALLS = 100  # profiled
LEAST_LAUNCHES = 64  # in a graph, as in the judge's


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reference", type=Path)
    parser.add_argument("kernel", type=Path)
    parser.add_argument("--what", choices=("times", "once"), default="times")
    parser.add_argument("--sets", type=int, default=2, help="distinct sets of buffers that calls rotate over")
    options = parser.parse_args()
    calls = _calls(options.reference, options.kernel, options.sets)
    if options.what == "once":
        for _ in range(3):
            for call in calls:
                call()
        torch.cuda.synchronize()
        return
    found = {"do_bench": do_bench(calls[0]), **profiled(calls)}
    print(json.dumps(found), flush=True)


def _calls(reference: Path, kernel: Path, sets: int) -> list[Callable[[], object]]:
    """A call of the kernel's `launch` for each of `sets` sets of buffers with the same values."""
    module, launch = _module(reference), _module(kernel).launch
    with torch.no_grad():
        model = module.Model(*module.get_init_inputs()).to(DEVICE).eval()
        given = [value.to(DEVICE) for value in module.get_inputs()]
        made = model(*given)
    inputs = [*given, *model.parameters(), *model.buffers()]
    outputs = [made] if isinstance(made, Tensor) else list(made)
    every = [[value.detach().clone() for value in (*inputs, *outputs)] for _ in range(sets)]
    return [functools.partial(launch, *tensors) for tensors in every]


def do_bench(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds by `triton.testing.do_bench`: median, and the middle four fifths."""
    from triton.testing import do_bench as measure

    low, middle, high = measure(call, quantiles=[0.1, 0.5, 0.9])
    return {"median_us": 1e3 * middle, "low_us": 1e3 * low, "high_us": 1e3 * high}


def profiled(calls: Sequence[Callable[[], object]]) -> dict[str, dict[str, float]]:
    """The device's own times of the kernels in a replayed CUDA graph over all sets, and launched one by one."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    passes = -(-LEAST_LAUNCHES // len(calls))  # from one graph to the next takes longer than from kernel to kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(passes):
            for call in calls:
                call()

    def one_by_one() -> None:
        for call in calls:
            call()

    return {
        "profiler_graph": _profile(graph.replay, -(-LEAST_CALLS // (passes * len(calls))), passes * len(calls)),
        "profiler_plain": _profile(one_by_one, -(-LEAST_CALLS // len(calls)), len(calls)),
    }


def _profile(play: Callable[[], Any], repeats: int, calls: int) -> dict[str, float]:
    """Median duration of a call's kernels, and from one call's start to the next's. Microseconds."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first profile of a process pays for the profiler's start
        with profile(activities=[ProfilerActivity.CUDA]) as taken:
            for _ in range(repeats):
                play()
            torch.cuda.synchronize()
    spans = _kernels(taken)
    if len(spans) % (repeats * calls):
        raise RuntimeError(f"{len(spans)} kernels in {repeats * calls} calls: not the same number in each")
    each = len(spans) // (repeats * calls)
    if each == 0:
        raise RuntimeError("the profiler saw no kernel")
    starts = [spans[i][0] for i in range(0, len(spans), each)]
    lengths = [sum(length for _, length in spans[i : i + each]) for i in range(0, len(spans), each)]
    steps = [after - before for before, after in itertools.pairwise(starts)]
    return {
        "kernel_us": statistics.median(lengths) / 1e3,
        "start_to_start_us": statistics.median(steps) / 1e3,
        "kernels_a_call": each,
    }


def _kernels(taken: Any) -> list[tuple[int, int]]:
    """(start, duration) of every kernel, in nanoseconds, by start; copies and fills are none."""
    from torch._C._autograd import DeviceType

    events = taken.profiler.kineto_results.events()
    return sorted(
        (event.start_ns(), event.duration_ns())
        for event in events
        if event.device_type() == DeviceType.CUDA and not event.name().startswith(("Memcpy", "Memset"))
    )


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
