"""A random sample of the outputs, read at the moment the child says "done": what is there later must be the same."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from autokernel.judge.buffers import BufferSet

_ROW = 4096  # bytes
_MOST_UNWRITTEN = 0.25  # of a row's bytes
_SETS, _ROWS = 8, 32  # a loop with 2 % of its outputs late or unwritten escapes once in 170 times


class Sample:
    """Random rows of a set's outputs: as they were before a loop, at "done", and once the child is stopped.

    One thread and no allocation while the clock runs: the child's own threads may still be spinning. The number of
    rows is always the same (drawn with repeats), so that a long loop's read costs what a short one's does.
    """

    def __init__(self, buffers: BufferSet, draw: np.random.Generator) -> None:
        self.buffers = buffers
        self.rows = buffers.rows(_ROW)
        due = buffers.rows_due(_ROW)
        self.due = len(due) > 0
        candidates = due if self.due else np.arange(len(self.rows))
        self.index = draw.choice(candidates, _ROWS)
        self.before = self.rows[self.index]
        self.at_done = self.before.copy()

    def read(self) -> None:
        self.rows.take(self.index, axis=0, out=self.at_done, mode="clip")

    def late(self) -> bool:
        """Whether the sampled rows have changed since `read`."""
        return not np.array_equal(self.rows[self.index], self.at_done)

    def untouched(self) -> int:
        """How many sampled rows still held their poison in over a quarter of their bytes at `read`.

        0 for a set that was not freshly poisoned. Bytes that happen to equal the poison are one in 256, and canaries
        beside a small output are left out.
        """
        if not self.buffers.armed or not self.due:
            return 0
        size = self.rows.shape[1]
        due = self.buffers.bytes_due(size, self.index)
        same = (self.at_done == self.before).sum(axis=1) - (size - due)  # what isn't due is never written
        return int((same > due * _MOST_UNWRITTEN).sum())


def sample(sets: Sequence[BufferSet]) -> list[Sample]:
    """Samples of the sets' outputs, taken before a loop."""
    draw = np.random.Generator(np.random.PCG64(secrets.randbits(64)))
    written = [s for s in sets if s.layout.outputs]
    return [Sample(written[i], draw) for i in draw.integers(len(written), size=_SETS)] if written else []
