"""How far a kernel may be off, element by element, and the sentence that tells its author where it is further.

    |got − reference| ≤ 2·E(b) + 8·s + 1 ulp(|reference|) + f

reference   the float64 oracle's value
E(b)        eager's largest error among references of the same magnitude (bins of a factor 4). A few elements fall
            short of it by chance: bins of fewer than 64 take in up to five bins above them (sums that cancel come
            out near zero, with the error of their terms), and for bfloat16 and float16 it is at least half an ulp
s           RMS change of this element over four float64 runs with every rounding perturbed (oracle.py); four runs
            give a few of many elements a small s by chance, so half the RMS of s over E's bins is its lower bound
ulp         distance between neighbours of the output's dtype at |reference|
f           what flushing subnormal results to zero may cost: the smallest normal number (float16: the smallest
            subnormal). GPUs' fast exponentials and some of ATen's own vector code flush.

Besides, the error is pooled: RMS(|err| / tolerance) over all elements of an output stays below a limit, so that a
kernel that is everywhere slightly off, each element inside its tolerance, is still seen. The limit is 0.5 for many
elements and widens to 1 for few (0.5 + 1/√n, at most 1), since a scalar output has nothing to average. Why 0.5: over
RMSNorm, LayerNorm, softmax, GELU, SwiGLU, cross-entropy and matrix products, kernels that sum in 1 to 64 lanes reach
0.01 to 0.25; wrong ones (bfloat16 sums, a wrong eps, 0.01 % off in scale) start at 0.6 and are mostly above 10.

In bfloat16 and float16 the error is pooled over each row (the last dim) too, and stays below 0.3 (0.3 + 0.7/n for rows
of n). There sums are float32's, so that what's left is the output's own rounding, which differs from element to element
and gives 0.12 to 0.25 in any row. A sum in bfloat16 moves its whole row by one unit or two in the last place: each
element is inside its tolerance, the row is not. Where eager's rows are further off, ours may be, too; where the
reference rounds to a narrow dtype on its way, and in float32, a row may honestly be off as one, and there is no limit.

NaN and ±Inf must be exactly where eager has them, or where the oracle has them: where eager overflows a kernel may
give the oracle's finite value, and where eager's order of operations makes an infinity of what is NaN, NaN. Outputs
without rounding (integers, booleans, data movement) equal eager's bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from autokernel.judge.diagnose import hint
from autokernel.judge.oracle import Expected
from autokernel.records import ErrorFigures, Reason

EAGER_FACTOR, SPREAD_FACTOR = 2.0, 8.0
POOLED_LIMIT, ROW_LIMIT = 0.5, 0.3
EAGER_ROWS = 1.25  # how much further off than eager's worst row is no fault
_INNER_ROUNDING = 0.02  # of the tolerance: what a reference's roundings before the last one may do at most for the rule
_BINS = 1024  # of a factor 4: all exponents of float64
FEW = 64  # elements of a bin, which eager's largest error there says too little of


@dataclass(frozen=True)
class Comparison:
    """One output against what was expected. `reason` is None when it passes."""

    reason: Reason | None
    explanation: str
    max_error: float = 0.0
    rmse: float = 0.0
    eager_max: float = 0.0
    eager_rmse: float = 0.0
    worst: float = 0.0  # largest |err| / tolerance
    pooled: float = 0.0


def compare(name: str, got: Tensor, expected: Expected) -> Comparison:
    """Judge one output. `name` is what the explanation calls it."""
    if expected.exact:
        return _compare_exact(name, got, expected.eager)
    eager, reference = expected.eager, expected.reference
    wide, eager_wide = got.double(), eager.double()
    error, eager_error, count = wide - reference, eager_wide - reference, reference.numel()
    if not math.isfinite(float(error.sum() + eager_error.sum())):  # else every value is finite
        special = _special_mismatch(name, wide, eager_wide, reference)
        if special is not None:
            return special
        judged = reference.isfinite() & wide.isfinite()
        reference = torch.where(judged, reference, 0.0)
        error = torch.where(judged, error, 0.0)
        eager_error = torch.where(judged & eager_wide.isfinite(), eager_error, 0.0)
        count = int(judged.sum())
    count = max(count, 1)
    error, eager_error = error.abs_(), eager_error.abs_()
    allowed = tolerance(reference, eager_error, expected.spread, eager.dtype)
    share = error / allowed
    pooled = _rms(share, count)
    figures = Comparison(
        None, "",
        float(error.max()) if error.numel() else 0.0,
        _rms(error, count),
        float(eager_error.max()) if error.numel() else 0.0,
        _rms(eager_error, count),
        float(share.max()) if error.numel() else 0.0,
        pooled,
    )  # fmt: skip
    if figures.worst > 1:
        text = _explain_values(name, got, eager, reference, error, allowed, share, count)
        return _failed(figures, Reason.wrong_values, text)
    if share.dim() and share.numel() and _narrow(eager.dtype) and _rounds_at_its_end(expected.spread, allowed):
        words = _explain_row(name, share, eager_error / allowed)
        if words is not None:
            return _failed(figures, Reason.wrong_values, words)
    limit = pooled_limit(count)
    if pooled > limit:
        text = (
            f"{name}: every element is inside its tolerance, but together they are off: RMS of |err|/tolerance is "
            f"{pooled:.3g} over {count} elements, at most {limit:.3g} is rounding; eager's RMS error is "
            f"{figures.eager_rmse:.3g}, yours {figures.rmse:.3g}"
        )
        return _failed(figures, Reason.wrong_values, text)
    return figures


def tolerance(reference: Tensor, eager_error: Tensor, spread: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The allowed |err| of every element: float64, positive everywhere. Bins and ulps come from the exponents' bits."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps if dtype is torch.float16 else info.smallest_normal
    exponent = (reference.contiguous().view(torch.int64) >> 52) & 0x7FF  # of the double, biased; 0 for zero
    allowed = _power(exponent + round(math.log2(info.eps))).add_(smallest)
    if not reference.numel():
        return allowed
    bins = (exponent >> 1).reshape(-1)
    largest = _of_bins(bins, eager_error.reshape(-1), "amax")
    counts = torch.bincount(bins, minlength=_BINS)
    eagers = (EAGER_FACTOR * _joined(largest, counts))[bins].reshape(reference.shape)
    if _narrow(dtype):
        eagers = torch.maximum(eagers, allowed - smallest)  # 2 · half an ulp
    allowed.add_(eagers)
    if spread is None:
        return allowed
    squares = _of_bins(bins, spread.square().reshape(-1), "sum")
    usual = _joined((squares / counts.clamp(min=1)).sqrt_(), counts)
    spread = torch.maximum(spread, 0.5 * usual[bins].reshape(reference.shape))
    return allowed.add_(spread, alpha=SPREAD_FACTOR)


def _of_bins(bins: Tensor, values: Tensor, how: Literal["amax", "sum"]) -> Tensor:
    """The largest value, or the sum, of each bin.

    Most values of a tensor share a few bins. On a GPU, where each is an atomic operation, they get 256 places a bin.
    """
    lanes = _lanes(bins)
    if lanes > 1:
        bins = bins + _BINS * (torch.arange(len(bins), device=bins.device) % lanes)
    table = torch.zeros(_BINS * lanes, dtype=torch.float64, device=bins.device)
    table = table.scatter_reduce_(0, bins, values, how).view(lanes, _BINS)
    return table.amax(0) if how == "amax" else table.sum(0)


def _lanes(bins: Tensor) -> int:
    return 256 if bins.is_cuda else 1


def _joined(of_bins: Tensor, counts: Tensor) -> Tensor:
    """The largest value of each bin; where it has few elements also of up to five above, until there are more."""
    joined, seen = of_bins, counts
    for step in range(1, 6):
        above, more = (torch.nn.functional.pad(values[step:], (0, step)) for values in (of_bins, counts))
        joined = torch.where(seen < FEW, torch.maximum(joined, above), joined)
        seen = seen + more
    return joined


def pooled_limit(count: int) -> float:
    """Limit of RMS(|err| / tolerance) over `count` elements."""
    return min(POOLED_LIMIT + 1 / math.sqrt(max(count, 1)), 1.0)


def row_limit(width: int) -> float:
    """Limit of RMS(|err| / tolerance) over a row of `width` elements of bfloat16 or float16."""
    return ROW_LIMIT + (1 - ROW_LIMIT) / width


def figures(comparisons: list[Comparison]) -> ErrorFigures | None:
    """The largest figures over all comparisons so far; None before the first."""
    if not comparisons:
        return None
    return ErrorFigures(
        max=max(one.max_error for one in comparisons),
        rmse=max(one.rmse for one in comparisons),
        eager_max=max(one.eager_max for one in comparisons),
        eager_rmse=max(one.eager_rmse for one in comparisons),
        tolerance=max(one.worst for one in comparisons),
    )


def _power(exponent: Tensor) -> Tensor:
    """2 to the power of a double's biased exponents, at least the smallest normal double."""
    return (exponent.clamp(min=1) << 52).view(torch.float64)


def _compare_exact(name: str, got: Tensor, eager: Tensor) -> Comparison:
    different = got != eager
    if got.is_floating_point():
        different &= ~(got.isnan() & eager.isnan())
        different |= (got == 0) & (eager == 0) & (got.signbit() != eager.signbit())
    if not bool(different.any()):
        return Comparison(None, "")
    where = _first(different)
    text = (
        f"{name}{list(where)}: got {_show(got[where])}, expected exactly {_show(eager[where])}; "
        f"{int(different.sum())} of {got.numel()} elements differ (no rounding happens here, so there is no tolerance)"
    )
    return Comparison(Reason.wrong_values, text, worst=math.inf)


def _special_mismatch(name: str, got: Tensor, eager: Tensor, reference: Tensor) -> Comparison | None:
    wrong = (
        (got.isnan() != eager.isnan()) | (got.isinf() != eager.isinf()) | (eager.isinf() & got.isinf() & (got != eager))
    )
    as_exact = (got.isnan() == reference.isnan()) & (got.isinf() == reference.isinf())
    wrong &= ~(as_exact & (~got.isinf() | (got == reference)))
    if not bool(wrong.any()):
        return None
    where = _first(wrong)
    text = (
        f"{name}{list(where)}: got {_show(got[where])}, expected {_show(eager[where])} as eager has it; "
        f"NaN or Inf differ in {int(wrong.sum())} of {got.numel()} elements"
    )
    return Comparison(Reason.wrong_special_values, text, worst=math.inf)


def _explain_values(
    name: str, got: Tensor, eager: Tensor, reference: Tensor, error: Tensor, allowed: Tensor, share: Tensor, count: int
) -> str:
    over = share > 1
    where = _index(int(share.argmax()), share.shape)
    common = hint(got, reference, over)
    return (
        f"{name}{list(where)}: got {_show(got[where])}, expected {_show(reference[where])} "
        f"± {float(allowed[where]):.3g} (off by {float(error[where]):.3g}, {float(share[where]):.3g} × the tolerance; "
        f"eager gives {_show(eager[where])}); {int(over.sum())} of {count} elements are over, "
        f"the first at {list(_first(over))}" + (f". {common}" if common else "")
    )


def _rounds_at_its_end(spread: Tensor | None, allowed: Tensor) -> bool:
    """Whether the reference rounds to a narrow dtype only where it is done, so that its rows can't be off as one."""
    return spread is None or _rms(spread / allowed, max(spread.numel(), 1)) <= _INNER_ROUNDING


def _explain_row(name: str, share: Tensor, eager_share: Tensor) -> str | None:
    """What is wrong with the row that is furthest off as a whole; None when no row is over its limit."""
    width = share.shape[-1]
    rows, eager_rows = (torch.linalg.vector_norm(one, dim=-1) / math.sqrt(width) for one in (share, eager_share))
    limit = max(row_limit(width), EAGER_ROWS * float(eager_rows.max()))
    where = _index(int(rows.argmax()), rows.shape)
    worst = float(rows[where])
    if worst <= limit:
        return None
    place = ", ".join([*map(str, where), ":"])
    return (
        f"{name}[{place}]: every element is inside its tolerance, but the row is off as a whole: RMS of "
        f"|err|/tolerance is {worst:.3g} over its {width} elements, at most {limit:.3g} is rounding; "
        f"{int((rows > limit).sum())} of {rows.numel()} rows are. "
        "Is a sum, or what else a row's elements share, kept in less than float32?"
    )


def _narrow(dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).bits < 32


def _failed(figures: Comparison, reason: Reason, explanation: str) -> Comparison:
    return Comparison(
        reason, explanation, figures.max_error, figures.rmse, figures.eager_max, figures.eager_rmse,
        figures.worst, figures.pooled,
    )  # fmt: skip


def _rms(values: Tensor, count: int) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(count)


def _first(mask: Tensor) -> tuple[int, ...]:
    return _index(int(mask.reshape(-1).to(torch.uint8).argmax()), mask.shape)


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    where = []
    for extent in reversed(shape):
        flat, here = divmod(flat, extent)
        where.append(here)
    return tuple(reversed(where))


def _show(value: Tensor) -> str:
    scalar = value.item()
    return f"{scalar:.7g}" if isinstance(scalar, float) else str(scalar)
