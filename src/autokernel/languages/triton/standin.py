"""What stands in for the GPU while a candidate's `launch` runs without one: Triton's driver, and torch.cuda.

Everything of Triton runs as it does on the GPU (specialisation, autotuning, the check against the chip's shared
memory), up to where a binary would be loaded and a kernel started: those do nothing. So each kernel that `launch`
would start is compiled under the same cache key. An autotuner's benchmark runs each configuration once, so that all of
them are compiled; which one it then takes says nothing.

The small C extension that Triton builds for each signature is built here too, if there is a C compiler: it is linked
against an empty libcuda made for the purpose, never loaded here, and finds the real one where it is loaded.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from autokernel.languages.triton.targets import Chip

LAUNCHERS_MISSING = "launchers are built on first launch"


class StandInDriver:
    """Triton's driver for a chip that isn't there. `link`: folder with a libcuda.so.1 to link launchers against."""

    def __init__(self, chip: Chip, link: str | None) -> None:
        from triton.backends.compiler import GPUTarget

        arch: int | str = int(chip.arch) if chip.backend == "cuda" else chip.arch
        self.chip, self.target = chip, GPUTarget(chip.backend, arch, chip.warp)
        self.utils = _Utils(chip)
        self.problems: list[str] = []
        build = _launcher_builder(link) if link is not None and chip.backend == "cuda" else None
        self.launcher_cls = self._launchers(build)

    def _launchers(self, build: Callable[[Any, Any], object] | None) -> Callable[[Any, Any], Callable[..., None]]:
        def launcher(source: Any, metadata: Any) -> Callable[..., None]:
            if build is not None:
                try:
                    build(source, metadata)
                except (OSError, subprocess.SubprocessError, RuntimeError) as error:
                    self.problems.append(f"{LAUNCHERS_MISSING}: {type(error).__name__}: {error}"[:500])
            return _nothing

        return launcher

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self.chip.capability

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return bench

    def get_empty_cache_for_benchmark(self) -> Any:
        return torch.empty(1, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        pass

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args

    def map_python_to_cpp_type(self, ty: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(ty))


def bench(call: Callable[[], object], *_: object, quantiles: Any = None, **__: object) -> Any:
    """In place of Triton's benchmark functions: run once, claim a millisecond."""
    call()
    return [1.0] * len(quantiles) if quantiles else 1.0


def install(chip: Chip, link: str | None) -> StandInDriver:
    """Put the stand-ins in place, in this process. No GPU is touched from then on."""
    import triton
    import triton.testing

    driver = StandInDriver(chip, link)
    triton.runtime.driver.set_active(driver)
    triton.testing.do_bench = bench
    triton.testing.do_bench_cudagraph = bench
    answer_torch_cuda(chip)
    return driver


class _Utils:
    """The part of a driver that loads binaries and asks the device."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return {
            "max_shared_mem": self.chip.shared_bytes,
            "max_num_regs": 65_536,
            "multiprocessor_count": self.chip.multiprocessors,
            "warpSize": self.chip.warp,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 3_201_000,
            "mem_bus_width": 6144,
            "arch": self.chip.arch,
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spilled words, most threads); handles of nothing."""
        from autokernel.languages.triton import binaries

        found = binaries.of_cubin(binary) if self.chip.backend == "cuda" else None
        registers = (found.registers if found else None) or 32
        return 0, 0, registers, ((found.spills if found else None) or 0) // 4, 1024

    def unload_module(self, module: object) -> None:
        pass

    def cuOccupancyMaxActiveClusters(self, *_: object) -> int:
        return self.chip.multiprocessors

    def set_printf_fifo_size(self, size: int) -> None:
        pass

    def fill_tma_descriptor(self, *_: object) -> object:
        return object()


def _nothing(*_: object, **__: object) -> None:
    return None


def empty_libcuda(folder: str) -> bool:
    """Make a libcuda.so.1 in `folder`, to link against: the names Triton uses, no contents. False without a C compiler.

    The names are there because a linker told `--as-needed` (Ubuntu's is) forgets a library that defines none of them.
    """
    from triton.backends.nvidia import driver as nvidia

    names: set[str] = set()
    for name in ("driver.c", "driver.py"):
        text = Path(nvidia.__file__).with_name(name).read_text(encoding="utf-8")
        names |= set(re.findall(r"\bcu[A-Z]\w+(?=\()", text))
    source = Path(folder, "libcuda.c")
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(names)), encoding="utf-8")
    made = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(Path(folder, "libcuda.so.1"))]
    for compiler in ("gcc", "clang", "cc"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([compiler, *made], check=True, capture_output=True, timeout=60)
            return True
    return False


def _launcher_builder(link: str) -> Callable[[Any, Any], object] | None:
    """Builds what the GPU's process will look for in the cache: the launcher of a signature, and `cuda_utils`."""
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import build

    if not hasattr(nvidia, "compile_module_from_src") or not hasattr(build, "_load_module_from_path"):
        return None  # a Triton whose launchers need no compiler, or come about in a way not known here
    nvidia.library_dirs = lambda: [nvidia.libdevice_dir, link]
    build._load_module_from_path = lambda name, path: _Module(name)

    def both(source: Any, metadata: Any) -> object:
        nvidia.CudaUtils()
        return nvidia.CudaLauncher(source, metadata)

    return both


class _Module(types.ModuleType):
    """A C extension that isn't loaded."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


# --- torch.cuda -------------------------------------------------------------------------------------------------------


class _Stream:
    """A stream or an event: whatever is asked of it is done already."""

    cuda_stream = cuda_event = 0
    device = torch.device("cuda", 0)
    device_index = 0
    stream_id = 0
    priority = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _self(self, *_: object, **__: object) -> _Stream:
        return self

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 1.0

    record_event = record = _self
    wait_event = wait_stream = wait = synchronize = _nothing


@contextlib.contextmanager
def _context(*_: object, **__: object) -> Iterator[None]:
    yield


def answer_torch_cuda(chip: Chip) -> None:
    """Let torch.cuda in this process answer what host code asks of it, for the chip; one device, one stream."""
    major, minor = chip.capability
    properties = types.SimpleNamespace(
        name=chip.name,
        major=major,
        minor=minor,
        multi_processor_count=chip.multiprocessors,
        total_memory=chip.total_memory,
        warp_size=chip.warp,
        L2_cache_size=chip.l2_bytes,
        shared_memory_per_block=49_152,
        shared_memory_per_block_optin=chip.shared_bytes,
        shared_memory_per_multiprocessor=chip.shared_bytes + 1024,
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=2048,
        gcnArchName=chip.arch,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
    stream = _Stream()
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: chip.capability,
        "get_device_name": lambda device=None: chip.name,
        "mem_get_info": lambda device=None: (chip.total_memory, chip.total_memory),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "is_bf16_supported": lambda *_, **__: True,
        "Stream": _Stream,
        "Event": _Stream,
        "device": _context,
        "device_of": _context,
        "stream": _context,
    }
    for name in ("init", "_lazy_init", "synchronize", "set_device", "set_stream", "empty_cache"):
        answers[name] = lambda *_, **__: None
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)  # noqa: B010 (not there in a build without CUDA)
