"""Where a workload runs, and how to wait for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autokernel.workload import Workload


def device_class(workload: Workload) -> str:
    """ "cuda" when any tensor of the model or its inputs is on a CUDA device, else "cpu"."""
    return "cuda" if cuda_devices(workload) else "cpu"


def cuda_devices(workload: Workload) -> list[int]:
    """Indices of the CUDA devices that hold the model's tensors and inputs, ascending; empty on the CPU."""
    model = workload.model
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    for case in workload.cases:
        tensors += [leaf for leaf in pytree.tree_leaves((case.args, case.kwargs)) if isinstance(leaf, Tensor)]
    found = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return sorted(torch.cuda.current_device() if device.index is None else device.index for device in found)


def wait_for(workload: Workload) -> Callable[[], None] | None:
    """Waits until the device has done all it was asked to; None where calls return when they are done."""
    indices = cuda_devices(workload)
    if not indices:
        return None

    def wait() -> None:
        for index in indices:
            torch.cuda.synchronize(index)

    return wait
