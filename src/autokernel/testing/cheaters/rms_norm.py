"""The task that most cheaters are about: RMSNorm, 64 rows of 256, fp32. KernelBench form."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def get_init_inputs() -> list[int]:
    return [256]


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 256)]
