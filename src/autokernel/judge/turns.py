"""New values at the price of a copy: bits of floating-point numbers turned round, nothing left to reuse.

Between timed rounds inputs get values that no call has seen. Drawing them takes longer than many a kernel, so those
that there are get moved in memory, and bits of theirs flipped: the sign where either is as likely, and a pattern of
mantissa bits that is new in every round. Moving and signs alone were not enough: where a result costs more than a copy
(an erf, a tanh), a kernel can look up where the values went, and copy the results it had. With the mantissa flipped a
value stays in its binade, so that magnitudes are those of the model, and no result follows from the one before.

Zeros, subnormal numbers, infinities and NaN keep their mantissa: they would become something else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}  # bits; dtypes whose values can be turned
_EXPONENT = {"float16": 5, "bfloat16": 8, "float32": 8, "float64": 11}


@dataclass(frozen=True)
class Turn:
    """Bits to flip in every element. `below_one`: numbers from 1 on keep their mantissa (a domain that ends at 1)."""

    sign: bool = False
    mantissa: int = 0
    below_one: bool = False

    def word(self, dtype: str) -> int:
        """The bits as an unsigned word of the dtype's size; 0 where nothing is flipped."""
        if dtype not in MANTISSA:
            return 0
        top = MANTISSA[dtype] + _EXPONENT[dtype]
        return (int(self.sign) << top) | (self.mantissa & ((1 << MANTISSA[dtype]) - 1))


def drawn(dtype: str, *, signed: bool, below_one: bool, draw: random.Random) -> Turn:
    """A turn for one input. The mantissa's highest bit or the one below is flipped for sure: values differ by 12 %."""
    bits = MANTISSA.get(dtype)
    if bits is None:
        return Turn()
    mantissa = draw.getrandbits(bits - 2) | draw.randrange(1, 4) << (bits - 2)
    return Turn(signed and draw.getrandbits(1) == 1, mantissa, below_one)


def sign_word(dtype: str) -> int:
    return Turn(sign=True).word(dtype)


def regular(words: Any, dtype: str, below_one: bool) -> Any:
    """Whether each word is a number whose mantissa may be flipped. `words`: a NumPy or torch array of integers."""
    bits = (1 << _EXPONENT[dtype]) - 1
    exponent = (words >> MANTISSA[dtype]) & bits
    most = bits >> 1 if below_one else bits  # the exponent of 1.0 is half of the largest
    return (exponent > 0) & (exponent < most)
