"""A line of the diagnosis."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line. `found` is what is there; `remedy` is what to do and empty exactly when the status is ok."""

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Nothing fails; warnings are allowed."""
        return all(check.status != "fail" for check in self.checks)

    def as_json(self) -> dict[str, object]:
        return {"schema": 1, "healthy": self.healthy, "checks": [asdict(check) for check in self.checks]}
