"""A task for cheats about precision on a GPU: a matrix product in fp32, 96×128 times 128×64. KernelBench form."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def get_init_inputs() -> list[int]:
    return []


def get_inputs() -> list[Tensor]:
    return [torch.randn(96, 128), torch.randn(128, 64)]
