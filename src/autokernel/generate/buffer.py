"""Tensors in memory as the generator sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: an input, an output, or a value handed from one nest to the next."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    kind: str  # "input" | "output" | "workspace"

    @property
    def elements(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
