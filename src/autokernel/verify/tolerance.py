"""The judge's tolerance on the outputs of a whole model; see verify/outputs.py for it in words.

One difference that a whole model needs: E(b) is pooled over every honest run, eager and the compiled baselines, which
differ from each other by more than the kernels of one region do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autokernel.judge.tolerance import tolerance

_WRONG = 1e9  # stands for "infinitely over" where a JSON file must hold a number

# where no float64 reference exists: (relative, relative to the output's RMS)
_AGAINST_EAGER = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Comparison:
    max_error: float
    eager_max_error: float
    worst: float  # largest |err| / tolerance
    compared: bool = True  # False: both are NaN or infinite everywhere, alike, so no value was looked at


WRONG = Comparison(_WRONG, 0.0, _WRONG)
_SPECIAL = Comparison(0.0, 0.0, 0.0, compared=False)


def compare(ours: Tensor, honest: Mapping[str, Tensor], reference: Tensor, spread: Tensor | None) -> Comparison:
    """`ours` against the float64 `reference`; `honest` holds "eager" and other baselines' values of the same output."""
    eager = honest["eager"]
    if not _alike(ours, eager):
        return WRONG
    usable = torch.isfinite(eager) & torch.isfinite(reference)
    if not bool(usable.any()):
        return _without_values(eager)
    whole = bool(usable.all())  # as a rule: then no index of eight bytes an element is made for a table of logits

    def chosen(value: Tensor) -> Tensor:
        return value.reshape(-1) if whole else value[usable]

    exact = chosen(reference)
    error = (chosen(ours).double() - exact).abs()
    largest = torch.zeros_like(exact)  # error of any honest run; one at a time, since a logit table of float64 is large
    for value in honest.values():
        torch.maximum(largest, (chosen(value).double() - exact).abs_().nan_to_num_(0, 0, 0), out=largest)
    with torch.device(exact.device):
        allowed = tolerance(exact, largest, chosen(spread) if spread is not None else None, ours.dtype)
    eager_error = float((chosen(eager).double() - exact).abs_().max())
    return Comparison(float(error.max()), eager_error, float((error / allowed).max()))


def compare_to_eager(ours: Tensor, eager: Tensor) -> Comparison:
    """The weaker rule: |ours − eager| ≤ r·(RMS + |eager|), r = 1e-3 in float32; exact where not floating."""
    if not eager.is_floating_point():
        return Comparison(0.0, 0.0, 0.0) if _equal(ours, eager) else WRONG
    if not _alike(ours, eager):
        return WRONG
    usable = torch.isfinite(eager)
    if not bool(usable.any()):
        return _without_values(eager)
    base = eager[usable].double()
    error = (ours[usable].double() - base).abs()
    relative = _AGAINST_EAGER.get(eager.dtype, 4e-2)
    allowed = relative * (base.square().mean().sqrt() + base.abs()) + torch.finfo(eager.dtype).tiny
    return Comparison(float(error.max()), 0.0, float((error / allowed).max()))


def _without_values(eager: Tensor) -> Comparison:
    """No element can be measured: nothing to be wrong about if there is none; finite values unmeasured are wrong."""
    if eager.numel() == 0:
        return Comparison(0.0, 0.0, 0.0)
    return WRONG if bool(torch.isfinite(eager).any()) else _SPECIAL


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
