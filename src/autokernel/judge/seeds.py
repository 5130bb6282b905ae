"""Secret seeds of a run: fresh for every run, published as a commitment only, never in anything a child can read."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seeds:
    """Seeds derived from one secret key. `repr` hides the key, so that no log or traceback holds it by accident."""

    key: bytes = field(repr=False)

    @classmethod
    def fresh(cls) -> Seeds:
        return cls(secrets.token_bytes(32))

    @property
    def commitment(self) -> str:
        """SHA-256 of the key (hex): published before the run; who is later given the key can check every seed."""
        return hashlib.sha256(self.key).hexdigest()

    def seed(self, purpose: str, number: int = 0) -> int:
        """The seed (63 bits) for the `number`-th draw of `purpose`; by HMAC-SHA256, so one tells nothing of others."""
        digest = hmac.digest(self.key, f"{purpose}\0{number}".encode(), "sha256")
        return int.from_bytes(digest[:8], "little") >> 1
