"""What the doctor asks in processes of their own, which may hang or die: run as `probes.py NAME`, one line of JSON.

facts      torch's view of the GPUs, and a kernel really run on the first
monitor U  what NVML says of the GPU with UUID U: other programs, clocks and what slows them; changes nothing
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import Any


def facts() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"built_for": torch.version.cuda}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["available"] = torch.cuda.is_available()
        found["count"] = torch.cuda.device_count()
    found["warnings"] = [str(warning.message) for warning in caught]
    if not found["available"]:
        return found
    device = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    found |= {"name": device.name, "uuid": f"GPU-{device.uuid}", "capability": [device.major, device.minor]}
    found |= {"free": free, "total": total, "sms": device.multi_processor_count}
    try:
        found["ran"] = int(torch.arange(1024, device="cuda:0").sum()) == 1023 * 512
    except RuntimeError as error:
        found |= {"ran": False, "error": str(error).splitlines()[0]}
    return found


def monitor(uuid: str) -> dict[str, Any]:
    try:
        nvml = importlib.import_module("pynvml")  # installed with nvidia-ml-py, and untyped
    except ImportError as error:
        return {"missing": str(error)}

    def ask(name: str, *arguments: object) -> Any:
        """An answer; None where this GPU or driver has none."""
        try:
            return getattr(nvml, name)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    nvml.nvmlInit()
    gpu = ask("nvmlDeviceGetHandleByUUID", uuid) or nvml.nvmlDeviceGetHandleByIndex(0)
    running = ask("nvmlDeviceGetComputeRunningProcesses", gpu) or []
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    usage = ask("nvmlDeviceGetUtilizationRates", gpu)
    return {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda": ask("nvmlSystemGetCudaDriverVersion_v2"),
        "programs": [[process.pid, process.usedGpuMemory] for process in running],
        "busy_percent": None if usage is None else usage.gpu,
        "sm": [ask("nvmlDeviceGetClockInfo", gpu, 1), ask("nvmlDeviceGetMaxClockInfo", gpu, 1)],  # 1: SM; MHz
        "memory": [ask("nvmlDeviceGetClockInfo", gpu, 2), ask("nvmlDeviceGetMaxClockInfo", gpu, 2)],  # 2: memory
        "reasons": reasons,
    }


def main(name: str, *arguments: str) -> None:
    found = facts() if name == "facts" else monitor(*arguments)
    sys.stdout.write(json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
