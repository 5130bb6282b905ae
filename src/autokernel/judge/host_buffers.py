"""A GPU's inputs and outputs where CUDA IPC is refused: shared memory of the CPU, copied by the child.

The child copies a whole set, canaries included, to its device before each command, and back after it. What comes back
is looked at as ever. What can't be done is to look while the device works: nothing is changed or poisoned during a
timed round, and a "done" is believed as far as the outputs that came with it. The copies are the same for short and
long rounds, so the slope leaves them out. Verdicts say that it was so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from autokernel.judge.buffers import BufferSet

if TYPE_CHECKING:
    from autokernel.records import TensorSpec


class HostSet(BufferSet):
    """A `BufferSet` that is given CUDA tensors; its own `inputs` and `outputs` are the CPU's."""

    @classmethod
    def create(cls, inputs: Sequence[Tensor], outputs: Sequence[TensorSpec]) -> Self:
        made = super().create([on_cpu(tensor) for tensor in inputs], outputs)
        made.layout = replace(made.layout, device="cuda")
        return made

    def rewrite(self, inputs: Sequence[Tensor]) -> None:
        super().rewrite([on_cpu(tensor) for tensor in inputs])


def on_cpu(tensor: Tensor) -> Tensor:
    """The same layout, offset and values in memory of the CPU; a CPU tensor as it is."""
    if tensor.device.type == "cpu":
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return whole.cpu().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
