"""A set of buffers where a task runs: shared memory of the CPU, or of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from autokernel.judge.buffers import BufferSet
from autokernel.judge.children import AnySet

if TYPE_CHECKING:
    from autokernel.records import TensorSpec

Transport = Literal["ipc", "host"]


def create_set(
    inputs: Sequence[Tensor], outputs: Sequence[TensorSpec], device: str, transport: Transport = "ipc"
) -> AnySet:
    """See `BufferSet.create`. `device`: "cpu" or "cuda", where the inputs are; `transport`: how a GPU's are shared.

    Raises ValueError.
    """
    if device == "cpu":
        return BufferSet.create(inputs, outputs)
    if transport == "host":
        from autokernel.judge.host_buffers import HostSet

        return HostSet.create(inputs, outputs)
    from autokernel.judge.cuda_buffers import CudaSet

    return CudaSet.create(inputs, outputs)
