"""A random sample of the outputs, read at the moment the child says "done": what is there later must be the same."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch

from autokernel.judge.buffers import BufferSet

_ROW = 4096  # bytes
_ROWS = 256  # over all sets of a loop: a loop with 2 % of its outputs late or unwritten escapes once in 170 times


class Sample:
    """Random rows of a set's outputs: as they were before a loop, at "done", and once the child is stopped."""

    def __init__(self, buffers: BufferSet, count: int) -> None:
        self.buffers = buffers
        self.rows = buffers.rows(_ROW)
        due = buffers.rows_of_outputs(_ROW)
        candidates = due.nonzero().flatten() if due.any() else torch.arange(len(self.rows))
        drawn = torch.randperm(len(candidates), generator=_secret_generator())[:count]
        self.index = candidates[drawn]
        self.due = due[self.index]
        self.before = self.rows[self.index]
        self.at_done = torch.empty_like(self.before)

    def read(self) -> None:
        torch.index_select(self.rows, 0, self.index, out=self.at_done)

    def late(self) -> bool:
        """Whether the sampled rows have changed since `read`."""
        return not torch.equal(self.rows[self.index], self.at_done)

    def untouched(self) -> int:
        """How many sampled rows still held nothing but poison at `read`; 0 for a set that was not freshly poisoned."""
        if not self.buffers.armed:
            return 0
        return int(((self.at_done == self.before).all(1) & self.due).sum())


def _secret_generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(secrets.randbits(63))
    return made


def sample(sets: Sequence[BufferSet]) -> list[Sample]:
    """Samples of the sets' outputs, taken before a loop."""
    share = max(1, _ROWS // len(sets))
    return [Sample(s, share) for s in sets if s.layout.outputs]
