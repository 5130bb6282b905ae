"""What the walk over a region must know of the language that its expressions are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autokernel.errors import UnknownName
from autokernel.generate.operators import TABLE, Row
from autokernel.generate.operators_triton import TRITON

LANGUAGES = ("cpp", "triton")


@dataclass(frozen=True)
class Dialect:
    """`cast`: a conversion, by C type and for all others under ""; `byte`: an int32 of any value modulo 256."""

    table: Mapping[str, Row]
    casts: Mapping[str, str]
    byte: str

    def cast(self, ctype: str) -> str:
        return self.casts[ctype] if ctype in self.casts else self.casts[""].replace("TYPE", ctype)


_CPP = Dialect(
    TABLE,
    {"bool": "({0} != 0)", "": "static_cast<TYPE>({0})"},
    # By way of int64, as PyTorch converts: a float outside uint8 has no value there.
    "static_cast<int32_t>(static_cast<uint8_t>(static_cast<int64_t>({0})))",
)
_TRITON = Dialect(
    TRITON,
    {
        "bool": "({0} != 0)",
        "float": "{0}.to(tl.float32)",
        "double": "{0}.to(tl.float64)",
        "int32_t": "{0}.to(tl.int32)",
        "int64_t": "{0}.to(tl.int64)",
    },
    "({0}.to(tl.int64) & 255).to(tl.int32)",
)


def dialect_of(language: str) -> Dialect:
    """Raises `UnknownName`."""
    found = {"cpp": _CPP, "triton": _TRITON}.get(language)
    if found is None:
        raise UnknownName(kind="kernel language", name=language, known=", ".join(LANGUAGES))
    return found
