"""A task for cheaters on a GPU, too large for its cache: RMSNorm, 16384 rows of 2048, bf16. KernelBench form."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def get_init_inputs() -> list[int]:
    return [2048]


def get_inputs() -> list[Tensor]:
    return [torch.randn(16384, 2048, dtype=torch.bfloat16)]
