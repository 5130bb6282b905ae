"""What this device reaches: bandwidth as a curve over sizes, and the rate of a large matrix product per dtype.

A single bandwidth figure is wrong for most tensors of a real model: small ones sit in a cache or are too short to
fill the memory pipeline. Each point is the best block of three streaming probes (copy, read, read + add + write), so it
is a ceiling and not an average. In-place probes are left out: they touch half the memory they count.

Measured once for a device, torch version and, on a CPU, thread count; kept as JSON in the user's cache folder. Delete
the file, or pass `refresh`, to measure again. The CPU is measured here, a GPU in ceilings_cuda.py.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from autokernel import settings
from autokernel.errors import AutokernelError, DeviceUnavailable
from autokernel.records import Ceilings

SIZES = tuple(2**power for power in range(16, 29, 2))  # bytes moved: 64 KB … 256 MB
QUICK_SIZES = tuple(2**power for power in range(16, 25, 4))
_BLOCK_BYTES = 2**25  # a block moves at least this much, so that the clock's own cost vanishes
_AGREEMENT, _PATIENCE = 0.03, 4  # see _best
_SLOW = 5e9  # flop/s below which a dtype has no matrix hardware here, and a large product would take seconds


def measure_ceilings(
    device: str = "cpu", threads: int | None = None, refresh: bool = False, quick: bool = False
) -> Ceilings:
    """Ceilings of `device`, from the cache when it has them. Takes up to about five seconds; `quick` about half a one.

    `device`: "cpu", "cuda" (the current one) or "cuda:N". `threads`: of a CPU; None: torch's current number. Quick
    measurements are cached apart, so they never pass for full ones. Raises `DeviceUnavailable`, and `OutOfMemory` where
    a GPU has too little left.
    """
    count = threads or torch.get_num_threads()
    if torch.device(device).type != "cpu":
        return _of_cuda(device, count, refresh, quick)
    path = cache_path(count, quick)
    if not refresh:
        known = _read(path)
        if known is not None:
            return known
    with _threads(count):
        found = Ceilings(
            device=cpu_name(),
            threads=count,
            bandwidth=_bandwidth(QUICK_SIZES if quick else SIZES, blocks=3 if quick else 6),
            matrix=_matrix(quick),
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
    _write(path, found)
    return found


def _of_cuda(name: str, threads: int, refresh: bool, quick: bool) -> Ceilings:
    device = cuda_device(name)
    path = cuda_cache_path(device, quick)
    known = None if refresh else _read(path)
    if known is not None:
        return known
    from autokernel.profile.ceilings_cuda import measure

    found, complete = measure(device, threads, quick)
    if complete:  # with little memory free the curve is short: good enough for now, not for later
        _write(path, found)
    return found


def cuda_device(name: str) -> torch.device:
    """The CUDA device called `name`, with its number. Raises DeviceUnavailable."""
    device = torch.device(name)
    if device.type != "cuda":
        raise DeviceUnavailable(device=name, detail="only the CPU and NVIDIA GPUs can be measured.")
    if not torch.cuda.is_available():
        raise DeviceUnavailable(device=name, detail="torch finds no usable GPU here.")
    if ":" not in name:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise DeviceUnavailable(device=name, detail=f"there are {torch.cuda.device_count()} GPU(s).")
    return device


def cuda_cache_path(device: torch.device, quick: bool = False) -> Path:
    """Where the ceilings for this GPU, driver and torch version are kept; a slice of a GPU is another GPU."""
    from autokernel.profile.bounds import driver_version

    found = torch.cuda.get_device_properties(device)
    key = (found.name, found.multi_processor_count, found.total_memory, driver_version(), torch.__version__, quick)
    return _cache_file("\n".join(map(str, key)))


def cpu_name() -> str:
    """The CPU's model name, as the kernel tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: fall through to what Python knows
    return platform.processor() or platform.machine()


def cache_path(threads: int, quick: bool = False) -> Path:
    """Where the ceilings for this CPU, torch version and thread count are kept."""
    key = "\n".join((cpu_name(), str(os.cpu_count()), torch.__version__, str(threads), str(quick)))
    return _cache_file(key)


def _cache_file(key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return settings.cache_dir() / "ceilings" / f"{name}.json"


def _read(path: Path) -> Ceilings | None:
    if not path.exists():
        return None
    try:
        return Ceilings.load(path)
    except AutokernelError:
        return None  # torn or from another version: it is only a cache, measure again


def _write(path: Path, ceilings: Ceilings) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        file.write(ceilings.dump())
    Path(file.name).replace(path)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best(call: Callable[[], object], repeats: int, blocks: int) -> float:
    """Seconds a call, in the fastest of at least `blocks` blocks of `repeats` calls; one more block warms up.

    Where another process takes the cores, the two fastest blocks don't agree yet, and more are run.
    """
    seconds: list[float] = []
    for block in range(_PATIENCE * blocks + 1):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        if block:
            seconds = sorted((*seconds, time.perf_counter() - begin))
        if len(seconds) >= blocks and seconds[1] <= (1 + _AGREEMENT) * seconds[0]:
            break
    return seconds[0] / repeats


def _bandwidth(sizes: tuple[int, ...], blocks: int) -> tuple[tuple[int, float], ...]:
    return tuple((size, _bytes_per_second(size, blocks)) for size in sizes)


def _bytes_per_second(size: int, blocks: int) -> float:
    whole = torch.ones(size // 4)
    source, target = whole[: size // 8], torch.ones(size // 8)
    repeats = max(1, _BLOCK_BYTES // size)

    def copy() -> None:
        target.copy_(source)

    def add() -> None:
        torch.add(source, 1.0, out=target)

    def read() -> None:
        whole.sum()

    with torch.inference_mode():
        return size / min(_best(probe, repeats, blocks) for probe in (copy, add, read))


def _matrix(quick: bool) -> dict[str, float]:
    """Flop per second of a square product, for each dtype that has one."""
    rates = {}
    with torch.inference_mode():
        for dtype, side in ((torch.float32, 1024), (torch.float64, 768), (torch.bfloat16, 1024)):
            rate = _product(dtype, 256, blocks=2)
            if rate > _SLOW and not quick:
                rate = max(rate, _product(dtype, side, blocks=5))
            rates[str(dtype).removeprefix("torch.")] = rate
    return rates


def _product(dtype: torch.dtype, side: int, blocks: int) -> float:
    left, right = (torch.ones(side, side, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _best(lambda: torch.mm(left, right), 1, blocks)
