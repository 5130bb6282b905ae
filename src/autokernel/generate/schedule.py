"""How a region is to be computed: a frozen record of choices, each of which changes the C++ text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    threads: Literal["all", "one"] = "all"
    keep: Literal["recompute", "buffer", "output"] = "recompute"  # values that a later pass needs again
    lanes: int = 0  # accumulators of a reduction, side by side in one vector loop; 0: as many as a vector has
    parts: int = 1  # a row's reductions run over that many equal parts side by side, each with its own accumulator
    streams: int = 1  # the same for passes that only write
    rows: int = 1  # rows in flight: their loops run as one
    divide: Literal["exact", "reciprocal"] = "exact"  # by a row's value: divide, or multiply by its reciprocal
    stores: Literal["cached", "streaming"] = "cached"
    block: int = 0  # pointwise over flat memory: elements per piece of work; 0: one even share a thread
    segments: Literal["apart", "together"] = "apart"  # pieces of a `cat`: a loop each, or equal ones in one loop
    order: Literal["stores", "loads", "tiles"] = "stores"  # loop order of a transposition: whose memory order
    chunk: int = 0  # rows per turn of a thread, dealt out as threads become free; 0: one even share each

    def __str__(self) -> str:
        """Only what differs from the default: "keep=buffer parts=4"."""
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(changed) or "default"
