"""The values of each choice for C++, the likeliest first."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from autokernel.generate.layout import loops
from autokernel.generate.plan import Plan
from autokernel.generate.schedule import Schedule

_SMALL = 16_384  # elements of the largest output below which a second thread hardly pays for being woken
_LARGE = 8 << 20  # bytes written beyond which the caches can't be of use to whoever reads them next


def bases(values: dict[str, tuple[Any, ...]]) -> list[Schedule]:
    """Schedules around which a value must change the text to be worth having."""
    found = [Schedule(**{axis: options[0] for axis, options in values.items()})]
    if len(values.get("block", ())) > 1:
        found.append(dataclasses.replace(found[0], block=max(values["block"])))
    if "lanes" in values:
        found.append(dataclasses.replace(found[0], lanes=0))
    return found


def axes(planned: Plan, threads: int) -> dict[str, tuple[Any, ...]]:
    """The values of each choice for this plan, the likeliest first; axes that matter most come first."""
    row = planned.kind == "row"
    elements = max(buffer.elements for buffer in planned.outputs)
    work = max(elements, max((b.elements for b in planned.inputs), default=0))
    written = sum(buffer.elements for buffer in planned.outputs) * 4
    found: dict[str, tuple[Any, ...]] = {}
    if row:
        found["keep"] = ("output", "buffer", "recompute")
        found["lanes"] = (32, 16, 64, 0)
        found["rows"] = (1, 2, 4)
        found["divide"] = ("reciprocal", "exact")
        found["streams"] = (1, 2, 4)
        found["parts"] = (1, 2, 4)
    else:
        found["order"] = ("stores", "loads", "tiles")
        found["segments"] = ("together", "apart")
        blocks = _blocks(planned)
        found["block"] = (*blocks, 0) if written >= _LARGE else (0, *blocks)
        found["streams"] = (1, 2, 4)
        found["rows"] = (1, 2, 4)
    found["stores"] = ("streaming", "cached") if written >= _LARGE else ("cached", "streaming")
    found["chunk"] = (0, 4, 16) if threads > 1 else (0,)
    if threads == 1:
        found["threads"] = ("one",)
    else:
        found["threads"] = ("one", "all") if work < _SMALL else ("all", "one")
    return found


def _blocks(planned: Plan) -> tuple[int, ...]:
    """Even pieces of a flat loop: about 1k, 4k and 16k elements."""
    flat = [loops(nest, Schedule()) for nest in planned.nests]
    extents = [found.columns[0].extent for found in flat if not found.rows and found.columns]
    chosen = []
    for wish in (4096, 1024, 16384):
        near = [d for n in extents for d in _divisors(n) if wish // 2 <= d <= wish * 2 and d < n]
        if near:
            chosen.append(min(near, key=lambda d: (abs(math.log(d / wish)), d)))
    return tuple(dict.fromkeys(chosen))


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})
