"""Whole-model tolerance, per element: |err| ≤ 2·E(b) + 8·s + 1 ulp(|ref|); see verify/outputs.py for the words.

The judge's rule for one region, with two differences a whole model needs: E(b) is pooled over every honest run (eager
and the compiled baselines, which differ from each other by more than a region's kernels do), and a bin holding few
elements borrows from its neighbours, since a largest error of three samples says little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_BIN_MINIMUM = 64  # elements; a smaller bin takes the largest error of its neighbours too
_WRONG = 1e9  # stands for "infinitely over" where a JSON file must hold a number

# where no float64 reference exists: (relative, relative to the output's RMS)
_AGAINST_EAGER = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Comparison:
    max_error: float
    eager_max_error: float
    worst: float  # largest |err| / tolerance


WRONG = Comparison(_WRONG, 0.0, _WRONG)


def compare(ours: Tensor, honest: Mapping[str, Tensor], reference: Tensor, spread: Tensor | None) -> Comparison:
    """`ours` against the float64 `reference`; `honest` holds "eager" and other baselines' values of the same output."""
    eager = honest["eager"]
    if not _alike(ours, eager):
        return WRONG
    usable = torch.isfinite(eager) & torch.isfinite(reference)
    if not bool(usable.any()):
        return Comparison(0.0, 0.0, 0.0)
    exact = reference[usable]
    error = (ours[usable].double() - exact).abs()
    errors = [(value[usable].double() - exact).abs().nan_to_num(0, 0, 0) for value in honest.values()]
    bins = _bins(exact)
    allowed = 2 * _bin_errors(bins, torch.stack(errors).amax(0)) + _ulp(exact, ours.dtype)
    if spread is not None:
        allowed = allowed + 8 * spread[usable]
    eager_error = (eager[usable].double() - exact).abs()
    return Comparison(float(error.max()), float(eager_error.max()), float((error / allowed).max()))


def compare_to_eager(ours: Tensor, eager: Tensor) -> Comparison:
    """The weaker rule: |ours − eager| ≤ r·(RMS + |eager|), r = 1e-3 in float32; exact where not floating."""
    if not eager.is_floating_point():
        return Comparison(0.0, 0.0, 0.0) if _equal(ours, eager) else WRONG
    if not _alike(ours, eager):
        return WRONG
    usable = torch.isfinite(eager)
    if not bool(usable.any()):
        return Comparison(0.0, 0.0, 0.0)
    base = eager[usable].double()
    error = (ours[usable].double() - base).abs()
    relative = _AGAINST_EAGER.get(eager.dtype, 4e-2)
    allowed = relative * (base.square().mean().sqrt() + base.abs()) + _ulp(base, eager.dtype)
    return Comparison(float(error.max()), 0.0, float((error / allowed).max()))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))


def _alike(ours: Tensor, eager: Tensor) -> bool:
    """The same shape and dtype, and NaN and infinities exactly where eager has them."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return False
    special = ~torch.isfinite(eager)
    if not bool((special == ~torch.isfinite(ours)).all()):
        return False
    return bool(torch.equal(ours[special].nan_to_num(0, 1, -1), eager[special].nan_to_num(0, 1, -1)))


def _bins(reference: Tensor) -> Tensor:
    """Which 4× range of magnitudes each element lies in, counted from zero."""
    exponents = (reference.abs().clamp(min=1e-300).log2() / 2).floor().long()
    return exponents - exponents.min()


def _bin_errors(bins: Tensor, errors: Tensor) -> Tensor:
    """Per element, the largest error of its bin (and of its neighbours' where the bin is thin)."""
    count = int(bins.max()) + 1
    size = torch.zeros(count, dtype=torch.long).scatter_add_(0, bins, torch.ones_like(bins))
    largest = torch.zeros(count, dtype=torch.float64).scatter_reduce_(0, bins, errors, "amax")
    around = torch.nn.functional.max_pool1d(largest.view(1, 1, -1), 3, stride=1, padding=1).view(-1)
    return torch.where(size < _BIN_MINIMUM, around, largest)[bins]


def _ulp(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of `dtype` at each magnitude."""
    info = torch.finfo(dtype)
    exponent = reference.abs().clamp(min=info.tiny).log2().floor()
    return torch.exp2(exponent) * 2.0 ** round(math.log2(info.eps))
