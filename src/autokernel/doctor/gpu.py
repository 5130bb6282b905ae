"""The GPU's lines. Everything runs in child processes with a deadline: this process never has a CUDA context.

No setting is ever changed: clocks are read, not locked, and other programs are named, not ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autokernel.doctor import ipc
from autokernel.doctor.check import Check

SECONDS = 60  # for a child that imports torch and makes a context
LOW_MEMORY = 4 << 30  # bytes free; below, larger models don't fit beside the judge's copies
NONE = "none; kernels are written in C++ for the CPU"
# NVML's clock event reasons that make timings wander or fall: heat and power
_SLOWED = {
    0x04: "power cap", 0x08: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake",
}  # fmt: skip
_HERE = Path(__file__).parent


class NoAnswer(Exception):
    """A probe gave no answer; the text is why."""


def check_gpus() -> tuple[Check, ...]:
    """One line where there is no GPU; else the GPU's, and the others once it runs a kernel."""
    import torch

    if torch.version.hip is not None:
        remedy = "Use `--device cpu`; kernels for AMD GPUs are compiled by this version but not run."
        return (Check("gpu", "warn", f"torch is built for AMD GPUs (ROCm {torch.version.hip})", remedy),)
    if torch.version.cuda is None:
        return (_without_cuda(torch.__version__),)
    try:
        facts = _ask("probes.py", "facts")
    except NoAnswer as error:
        return (Check("gpu", "fail", f"torch can't be asked about GPUs: {error}", _RESTART),)
    if not facts["available"] and not _nvidia_driver():
        return (Check("gpu", "ok", NONE),)
    first = gpu_line(facts)
    if first.status == "fail":
        return (first,)
    return (first, *_monitor_lines(facts), _ipc_line(), _triton_line(), _sandbox_line())


_RESTART = "Run `nvidia-smi`: if it fails too, the driver is at fault (reinstall it, or restart the machine)."


def _without_cuda(version: str) -> Check:
    if not _nvidia_driver():
        return Check("gpu", "ok", NONE)
    remedy = "To use the GPU, install torch's CUDA build: `pip install --force-reinstall torch` without a CPU index."
    return Check("gpu", "warn", f"an NVIDIA driver is here, but torch {version} is built for the CPU only", remedy)


def _nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or bool(_nodes())


def _nodes() -> list[Path]:
    return sorted(Path("/dev").glob("nvidia*"))


def gpu_line(facts: dict[str, Any]) -> Check:
    """From the probe `facts`: usable only where a kernel ran."""
    if not facts["available"]:
        why = "; ".join(facts["warnings"]) or "torch.cuda.is_available() is False"
        remedy = (
            f"The driver must support CUDA {facts['built_for']} or later, and /dev/nvidia* must be accessible here."
        )
        return Check("gpu", "fail", f"an NVIDIA driver is here, but torch can't use it: {why}", remedy)
    major, minor = facts["capability"]
    others = f", {facts['count'] - 1} more (not used)" if facts["count"] > 1 else ""
    found = (
        f"{facts['name']} (sm_{major}{minor}, {facts['sms']} SMs), "
        f"{_size(facts['free'])} of {_size(facts['total'])} free{others}"
    )
    if not facts["ran"]:
        why = facts.get("error", "it gave a wrong sum")
        remedy = f"Install a torch built for sm_{major}{minor}; {_RESTART}"
        return Check("gpu", "fail", f"{found}; a kernel does not run on it: {why}", remedy)
    if facts["free"] < LOW_MEMORY:
        return Check("gpu", "warn", found, "Stop other programs on the GPU, or expect only small models to fit.")
    return Check("gpu", "ok", found)


def _monitor_lines(facts: dict[str, Any]) -> tuple[Check, ...]:
    try:
        seen = _ask("probes.py", "monitor", facts["uuid"])
    except NoAnswer as error:
        return (Check("gpu driver", "warn", f"NVML does not answer: {error}", _RESTART),)
    if "missing" in seen:
        found = f"for CUDA {facts['built_for']} (torch); other programs on the GPU and its clocks can't be seen"
        return (Check("gpu driver", "warn", found, "Install `nvidia-ml-py`: `pip install nvidia-ml-py`."),)
    return driver_line(seen, facts["built_for"]), programs_line(seen), clocks_line(seen)


def driver_line(seen: dict[str, Any], built_for: str) -> Check:
    """From the probe `monitor`: the driver and the CUDA version it supports, against the one torch is built for."""
    number = seen["cuda"] or 0
    supports = (number // 1000, number % 1000 // 10)
    found = f"{seen['driver']}, supports CUDA {supports[0]}.{supports[1]}; torch is built for {built_for}"
    if number and supports[0] < int(built_for.partition(".")[0]):
        return Check("gpu driver", "warn", found, "Update the driver, or use a torch built for an older CUDA.")
    return Check("gpu driver", "ok", found)


def programs_line(seen: dict[str, Any]) -> Check:
    others = [(pid, used) for pid, used in seen["programs"] if pid != os.getpid()]
    busy = "" if seen["busy_percent"] is None else f", the GPU is {seen['busy_percent']} % busy"
    if not others:
        return Check("gpu programs", "ok", f"no other program uses the GPU{busy}")
    named = ", ".join(f"{pid} ({_size(used)})" if used else str(pid) for pid, used in others[:5])
    remedy = "Timings are disturbed while they work: stop them, or choose another GPU with CUDA_VISIBLE_DEVICES."
    return Check("gpu programs", "warn", f"{len(others)} on the GPU: process {named}{busy}", remedy)


def clocks_line(seen: dict[str, Any]) -> Check:
    clocks = [_clock(name, *seen[key]) for name, key in (("SM", "sm"), ("memory", "memory"))]
    found = ", ".join(text for text in clocks if text) or "not told by this GPU"
    slowed = [word for bit, word in _SLOWED.items() if (seen["reasons"] or 0) & bit]
    if slowed:
        remedy = "Let it cool or raise its power limit; until then timings spread, and intervals are wider."
        return Check("gpu clocks", "warn", f"{found}; slowed by {', '.join(slowed)}", remedy)
    return Check("gpu clocks", "ok", found)


def _clock(name: str, now: int | None, most: int | None) -> str:
    return f"{name} {now} of {most} MHz" if now is not None and most is not None else ""


def _ipc_line() -> Check:
    problem = ipc.probe()
    if problem is None:
        return Check("gpu ipc", "ok", "CUDA IPC works: memory written by another process was seen")
    remedy = (
        "Kernels are judged with copies through host memory instead: slower, but right. In a container: --ipc=host."
    )
    return Check("gpu ipc", "warn", f"CUDA IPC does not work: {problem}", remedy)


def _triton_line() -> Check:
    with tempfile.TemporaryDirectory() as cache:
        try:
            found = _ask("triton_probe.py", environment={"TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"})
        except NoAnswer as error:
            remedy = (
                "Triton comes with torch on Linux (`pip install triton`) and needs a C compiler and Python's headers."
            )
            return Check("triton", "fail", f"no kernel can be compiled: {error}", remedy)
    text = f"{found['triton']}: a kernel compiled and ran in {found['seconds']:.1f} s"
    if not found["right"]:
        return Check("triton", "fail", f"{text}, and was wrong", "Install the Triton version that this torch asks for.")
    return Check("triton", "ok", text)


def _sandbox_line() -> Check:
    """CUDA under bubblewrap, memory handed in over IPC: what a judged kernel meets."""
    if shutil.which("bwrap") is None:
        remedy = "Install it (`apt-get install bubblewrap`); until then kernels are judged in plain child processes."
        return Check("gpu sandbox", "warn", "not tried: bubblewrap is not installed", remedy)
    from autokernel.judge.isolation import shut_in

    problem = ipc.probe(prefix=shut_in("cuda"))  # exactly what a judged child is run under
    if problem is None:
        return Check("gpu sandbox", "ok", "CUDA and CUDA IPC work inside bubblewrap")
    remedy = "Allow user namespaces, and check access to /dev/nvidia*; until then kernels are judged in plain children."
    return Check("gpu sandbox", "warn", f"CUDA does not work inside bubblewrap: {problem}", remedy)


def _ask(program: str, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON that a probe prints as its last line. Raises NoAnswer."""
    command = [sys.executable, "-P", str(_HERE / program), *arguments]
    env = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"no answer within {SECONDS} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()
        raise NoAnswer(words[-1] if words else f"ended with status {done.returncode} and no word")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _size(number: float) -> str:
    return f"{number / (1 << 30):.1f} GiB"
