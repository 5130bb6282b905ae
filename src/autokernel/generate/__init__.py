"""Region × schedule → the text of a kernel.py. Pure: the same inputs give the same bytes.

    coverage(module) -> Coverage             can the generator write this lowered region, as which kind, or why not
    schedules(module, language) -> tuple     the space, most promising first (deterministic)
    generate(task, module, schedule) -> str  the complete kernel file
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coverage:
    kind: str | None  # "pointwise" | "row"; None when no generator applies
    reason: str = ""  # why not, in words for the report
