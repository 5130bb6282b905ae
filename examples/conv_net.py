"""A small residual conv net for images: convolution, batch norm, in-place ReLU, average pooling, a classifier.

Two stages of 16 and 32 channels on 32 × 32 images, batch 4, fp32, inference.
KernelBench form: `Model`, `get_init_inputs()`, `get_inputs()`.
"""

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Model(nn.Module):
    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.stage1 = ResidualBlock(channels, channels)
        self.stage2 = ResidualBlock(channels, 2 * channels, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2 * channels, classes)
        for module in self.modules():  # as after training: statistics that are not 0 and 1
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2.0)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stage2(self.stage1(self.stem(images)))
        return self.classifier(self.pool(x).flatten(1))


def get_init_inputs() -> list:
    return [16, 10]


def get_inputs() -> list:
    return [torch.randn(4, 3, 32, 32)]
