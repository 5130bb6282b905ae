"""How a region is to be computed in Triton: a frozen record of choices, each of which changes the kernel's text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True)
class TritonSchedule:
    # a row: whole in registers; in pieces that are powers of two; in a loop of blocks, once a pass; or such a loop in
    # which the running maximum rescales the sum (softmax, logsumexp, cross-entropy), so that one pass does for two
    structure: Literal["whole", "split", "loop", "online"] = "whole"
    warps: int = 4
    rows: int = 1  # rows a program works on at the same time
    block: int = 0  # columns of a tile; 0: the whole row
    persistent: int = 0  # programs a multiprocessor, each going from tile to tile; 0: a program for each tile
    stages: int = 1  # of the software pipeline over blocks or tiles: loads run that far ahead
    divide: Literal["exact", "fast", "reciprocal"] = "exact"  # reciprocal: of a row's divisor, once a row
    exp: Literal["exact", "fast", "folded"] = "exact"  # folded: e^(x - m) = 2^(x·log2 e - m·log2 e), one multiply-add
    evict: Literal["none", "hints"] = "none"  # tell the caches what is read once and what is read again
    order: Literal["stores", "loads", "tiles"] = "stores"  # of a transposition: whose memory order a tile follows

    def __str__(self) -> str:
        """What it is, and what else differs from the default: "whole warps=8 rows=2"."""
        shown = [self.structure, f"warps={self.warps}"]
        rest = [f for f in fields(self) if f.name not in ("structure", "warps")]
        changed = [f"{f.name}={getattr(self, f.name)}" for f in rest if getattr(self, f.name) != f.default]
        return " ".join([*shown, *changed])
