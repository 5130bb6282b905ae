"""What the wrong elements of an output have in common, in words: it tells an author where to look first.

A hint decides nothing. It is a guess from one tensor, said only where almost all wrong elements agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SAMPLE = 1 << 18  # elements whose values are looked at
_MOST = 0.95  # of the wrong elements must agree
_SAME = 0.02  # how far ratios or differences may spread, relative to what they differ from
_TF32, _BF16 = (2.0**-14, 2.0**-10.5), (2.0**-10.5, 2.0**-6)  # typical relative errors of sums of rounded factors


def hint(got: Tensor, reference: Tensor, over: Tensor) -> str:
    """A sentence, or "" where nothing stands out.

    got        the output as written, any floating dtype
    reference  float64, the same shape, finite
    over       bool, the same shape: elements beyond their tolerance, at least one
    """
    wide = got.double()
    words = [_where(over), _values(wide, reference, over) or _shifted(wide, reference, over)]
    if not any(words):
        words = [_precision(got, wide, reference, over)]
    found = "; ".join(word for word in words if word)
    return f"{found[0].upper()}{found[1:]}." if found else ""


def _where(over: Tensor) -> str:
    """One end of a dim that holds every wrong element, while the rest of it is right."""
    several = int(over.sum()) > 1
    for dim in reversed(range(over.dim())):
        size = over.shape[dim]
        wrong = over.movedim(dim, 0).reshape(size, -1).any(1).nonzero()
        low, high = int(wrong[0]), int(wrong[-1]) + 1
        if not several or size < 4 or high - low > size // 2:
            continue
        if high == size:
            return f"only the last {high - low} of {size} places along dim {dim} are wrong (a tail left out?)"
        if low == 0:
            return f"only the first {high - low} of {size} places along dim {dim} are wrong"
    return ""


def _values(wide: Tensor, reference: Tensor, over: Tensor) -> str:
    found, wanted = (values[:: len(values) // _SAMPLE + 1] for values in (wide[over], reference[over]))
    if _share(found == 0) and _share(wanted != 0):
        return "zero was written where other values belong"
    if len(found) < 4:
        return ""
    ratios = (found / wanted)[(wanted != 0) & found.isfinite()]
    if len(ratios) > len(found) // 2:
        factor = float(ratios.median())
        if abs(factor - 1) > 1e-4 and _share((ratios - factor).abs() <= _SAME * abs(factor - 1)):
            return f"each is about {factor:.4g} × what was expected (a factor missing, or one too many?)"
    apart = found - wanted
    step = float(apart.median())
    if step and _share((apart - step).abs() <= _SAME * abs(step)):
        return f"each is off by about {step:.4g} (a term missing, or one too many?)"
    return ""


def _shifted(wide: Tensor, reference: Tensor, over: Tensor) -> str:
    """Values that belong to a neighbour."""
    for dim in reversed(range(wide.dim())):
        if wide.shape[dim] < 4:
            continue
        for step, which in ((1, "before"), (-1, "after")):
            moved = reference.roll(step, dim)
            near = (wide - moved).abs() <= 1e-2 * moved.abs()
            others = near & ((wide - reference).abs() > 4 * (wide - moved).abs())
            if _share(others[over]) and int(over.sum()) >= 4:
                return f"each holds the value of the place {which} it along dim {dim} (an index off by one?)"
    return ""


def _precision(got: Tensor, wide: Tensor, reference: Tensor, over: Tensor) -> str:
    """Errors of the size that products in a lower precision have, in an output that could hold better ones."""
    if got.dtype not in (torch.float32, torch.float64) or int(over.sum()) < over.numel() // 4:
        return ""
    usual = reference.square().mean().sqrt()
    relative = float(((wide - reference)[over].square().mean().sqrt() / usual) if usual > 0 else 0.0)
    for name, (low, high) in (("TF32", _TF32), ("bfloat16", _BF16)):
        if low <= relative < high:
            return f"errors of {relative:.1e} of the usual value look like arithmetic in {name}"
    return ""


def _share(agrees: Tensor) -> bool:
    return agrees.numel() > 0 and float(agrees.double().mean()) >= _MOST
