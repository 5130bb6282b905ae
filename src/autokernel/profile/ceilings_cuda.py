"""What a GPU reaches, measured: bandwidth over sizes, matrix rate per dtype, the shortest kernel.

Everything is timed as the judge times kernels: launches captured in a CUDA graph, replayed, by CUDA events; best block.
Each bandwidth point is the best of four streaming kernels (copy, scale, add, read), so it is a ceiling. What fits into
half the L2 cache is measured there, the rest over buffers that together exceed three times its size. A point contains
the launch, so that small sizes show what a small tensor can reach and not what the memory could.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from autokernel.errors import OutOfMemory
from autokernel.profile.bounds import driver_version, spec
from autokernel.records import Ceilings

SIZES = tuple(2**power for power in range(16, 31))  # bytes moved: 64 KB … 1 GB
QUICK_SIZES = tuple(2**power for power in range(16, 29, 4))
MATRICES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_COLD = 3  # rotate through this many times the L2 cache
_GRAPH_SECONDS, _BLOCK_SECONDS = 4e-4, 2e-3  # what a graph holds; a block replays it until it lasts this long
_GUESS = 4e12  # bytes per second, only to choose how many launches a graph holds
_PRODUCT_SECONDS = 0.02  # a larger product is tried while it is expected to take less than this


def measure(device: torch.device, threads: int, quick: bool) -> tuple[Ceilings, bool]:
    """Ceilings of a CUDA device, and whether the memory allowed all sizes. Takes 2 to 6 s; quick about half a one.

    Raises OutOfMemory where not even three times the L2 cache is free.
    """
    with torch.cuda.device(device), torch.inference_mode():
        properties = torch.cuda.get_device_properties(device)
        l2, sizes = int(properties.L2_cache_size), QUICK_SIZES if quick else SIZES
        arena = _arena(device, _COLD * l2, max(_COLD * l2, sizes[-1]))
        fitting = tuple(size for size in sizes if size <= arena.numel() * 4)
        blocks = 2 if quick else 4
        _warm_up(arena)
        launch = _launch_seconds(device, blocks)
        bandwidth = tuple((size, _bytes_per_second(arena, size, l2, blocks)) for size in fitting)
        del arena
        matrix = _matrix(device, quick)
        bounds = spec(device.index or 0, properties.multi_processor_count).beyond(bandwidth[-1][1], matrix)
        found = Ceilings(
            device=str(properties.name),
            threads=threads,
            bandwidth=bandwidth,
            matrix=matrix,
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            launch_us=1e6 * launch,
            l2_bytes=l2,
            sms=int(properties.multi_processor_count),
            driver=driver_version(),
            spec_bytes_per_second=bounds.bytes_per_second,
            spec_flops=bounds.flops,
        )
        torch.cuda.empty_cache()  # the memory is other processes' to use: those of the judge
    return found, fitting == sizes


def _arena(device: torch.device, least: int, wanted: int) -> Tensor:
    """One float32 buffer that all probes work in: `wanted` bytes, halved until it fits, at least `least`."""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    while wanted > 0.8 * free and wanted > least:
        wanted = max(wanted // 2, least)
    try:
        return torch.rand(wanted // 4, device=device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(doing=f"measuring what {device} can do", detail=str(error).splitlines()[0]) from error


def _warm_up(arena: Tensor) -> None:
    """Bring the clocks up."""
    half = arena.numel() // 2
    for _ in range(50):
        torch.add(arena[:half], 1.0, out=arena[half : 2 * half])
    torch.cuda.synchronize(arena.device)


def _launch_seconds(device: torch.device, blocks: int) -> float:
    """Seconds from one launch to the next in a graph of the shortest kernels, each waiting for the one before."""
    tiny = torch.zeros(1, device=device)
    return _per_call([lambda: tiny.add_(1.0)], 200, blocks)


def _bytes_per_second(arena: Tensor, size: int, l2: int, blocks: int) -> float:
    sets = 1 if size <= l2 // 2 else max(1, math.ceil(_COLD * l2 / size))
    sets = max(1, min(sets, 4 * arena.numel() // size))
    rows = arena[: sets * (size // 4)].view(sets, size // 4)
    calls = max(sets, min(100, int(_GRAPH_SECONDS / (2e-6 + size / _GUESS))))
    probes = ([make(row) for row in rows] for make in (_copy, _scale, _add, _read))
    return size / min(_per_call(probe, calls, blocks) for probe in probes)


def _copy(row: Tensor) -> Callable[[], object]:
    source, target = row.chunk(2)
    return lambda: target.copy_(source)


def _scale(row: Tensor) -> Callable[[], object]:
    source, target = row.chunk(2)
    return lambda: torch.mul(source, 0.5, out=target)


def _add(row: Tensor) -> Callable[[], object]:
    third = row.numel() // 3 // 4 * 4  # aligned for vectors
    one, other, target = row[:third], row[third : 2 * third], row[2 * third : 3 * third]
    return lambda: torch.add(one, other, out=target)


def _read(row: Tensor) -> Callable[[], object]:
    result = torch.empty((), device=row.device)
    return lambda: torch.sum(row, dim=0, out=result)


def _per_call(probes: list[Callable[[], object]], calls: int, blocks: int) -> float:
    """Seconds a call in the fastest block: `calls` launches in turn over the probes, captured once and replayed."""
    graph = _captured(lambda: [probes[number % len(probes)]() for number in range(calls)], probes)
    graph.replay()
    once = _event_seconds(graph.replay, 1)
    repeats = max(1, math.ceil(_BLOCK_SECONDS / max(once, 1e-6)))
    return min(_event_seconds(graph.replay, repeats) for _ in range(blocks)) / (repeats * calls)


def _captured(launch: Callable[[], object], warm: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """`torch.cuda.graph` empties the allocator's cache for each capture; this small one needs no such thing."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm[0]()
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _event_seconds(call: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _matrix(device: torch.device, quick: bool) -> dict[str, float]:
    """Flop per second of the best square product on random numbers (zeros draw less power and run faster)."""
    with without_tf32():
        return {str(dtype).removeprefix("torch."): _best_product(device, dtype, quick) for dtype in MATRICES}


def _best_product(device: torch.device, dtype: torch.dtype, quick: bool) -> float:
    best = 0.0
    for side in (2048, 4096) if quick else (1024, 2048, 4096, 8192):
        if best and 2 * side**3 / best > _PRODUCT_SECONDS:
            break  # no matrix hardware for this dtype: a larger product would take seconds
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)

        def product(left: Tensor = left, right: Tensor = right, out: Tensor = out) -> Tensor:
            return torch.mm(left, right, out=out)

        product()  # chooses its algorithm
        once = _event_seconds(product, 1)
        repeats = max(2, math.ceil(4e-3 / max(once, 1e-6)))
        seconds = min(_event_seconds(product, repeats) for _ in range(2 if quick else 4)) / repeats
        best = max(best, 2 * side**3 / seconds)
    return best


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """float32 products in float32; the user's choice is put back by the interface it was made with.

    torch has two interfaces for this and refuses to run with one saying yes and the other no.
    """
    matmul = torch.backends.cuda.matmul
    if matmul.fp32_precision != "tf32":
        yield
        return
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # chosen through `fp32_precision`; the older interface can't express it
        legacy = "highest"
    if legacy == "highest":
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(legacy)
