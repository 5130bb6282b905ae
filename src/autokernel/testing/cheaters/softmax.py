"""A second task for cheaters: softmax over rows of 200, fp32. KernelBench form."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)


def get_init_inputs() -> list[int]:
    return []


def get_inputs() -> list[Tensor]:
    return [torch.randn(48, 200)]
