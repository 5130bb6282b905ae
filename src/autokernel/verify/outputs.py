"""Are the model's outputs right? Against float64, beside the error of the baselines a user would run instead.

Per element: |err| ≤ 2·E(b) + 8·s + 1 ulp(|ref|). E(b): the largest error of an honest run (eager, torch.compile) among
references of the same magnitude, in bins of 4×. s: the RMS change over four float64 runs that wobble every intermediate
by the rounding of the model's dtype. Integer and bool outputs are the same as eager's, and infinities and NaN are where
eager has them. Where no float64 run exists, or the device's memory is too small for it, outputs are compared with
eager's and a note says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autokernel.records import OutputRow
from autokernel.verify.device import cuda_devices
from autokernel.verify.observe import Observed, fresh, observe
from autokernel.verify.raised import ROUNDOFF, raise_tensor, raised, raised_model
from autokernel.verify.tolerance import WRONG, Comparison, compare, compare_to_eager
from autokernel.workload import Case, Workload

_WOBBLES, _FEWEST = 4, 2  # runs that show what rounding may do; the fewest even when time is short
_LOGITS = 1000  # a float output this wide is read by its largest element


@dataclass
class Check:
    """The rows, and what a reader must know about how they came about."""

    rows: list[OutputRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)  # outputs without one finite element: nothing shows them right

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(row.passed for row in self.rows)


def check_outputs(
    workload: Workload,
    ours: Callable[..., Any],
    honest: Mapping[str, Callable[..., Any]],
    *,
    seed: int,
    seconds: float = 30.0,
) -> Check:
    """Compare `ours` on the workload's inputs and on fresh ones; `honest` are the baselines, "eager" among them."""
    check = Check()
    end = time.monotonic() + seconds
    for number, case in enumerate(workload.cases):
        label = f"case {number}: " if len(workload.cases) > 1 else ""
        for draw, inputs in (("", case), (" (fresh inputs)", fresh(case, seed + number))):
            if draw and time.monotonic() > end and check.rows:
                check.notes.append(f"{label}fresh inputs were left out: the time for checking outputs was used up")
                continue
            with torch.random.fork_rng(devices=cuda_devices(workload)):  # the user's own random numbers go on
                _check_case(workload, ours, honest, inputs, check, (label, draw), end)
    return check


def _check_case(
    workload: Workload,
    ours: Callable[..., Any],
    honest: Mapping[str, Callable[..., Any]],
    case: Case,
    check: Check,
    labels: tuple[str, str],
    end: float,
) -> None:
    model = workload.model
    torch.manual_seed(0)
    seen = {name: observe(call, model, case) for name, call in honest.items()}
    eager = seen["eager"]
    torch.manual_seed(1)
    if not agree(eager, observe(honest["eager"], model, case)):
        check.notes.append("eager's own outputs change from call to call; they can't be verified")
        check.rows.append(_refused("output"))
        return
    found = observe(ours, model, case)
    if set(found) != set(eager) or not eager:
        missing = sorted(set(eager) ^ set(found)) or ["no tensor among the outputs"]
        check.notes.append(f"outputs that can't be compared: {', '.join(missing)}")
        check.rows.append(_refused(missing[0]))
        return
    reference, spread = _reference(workload, case, _dtype(eager), end, check)
    for name, value in found.items():
        others = {other: results[name] for other, results in seen.items() if name in results}
        exact = reference.get(name) if reference is not None else None
        label = labels[0] + name + labels[1]
        try:
            comparison = _compare(value, others, exact, spread.get(name))
        except torch.OutOfMemoryError:
            _once(check, f"{label}: no memory to compare it in float64; it is compared with eager's")
            comparison, exact = compare_to_eager(value, eager[name]), None
        if not comparison.compared:
            check.uncompared.append(label)
            check.notes.append(f"{label}: nothing was compared, it is NaN or infinite everywhere")
        check.rows.append(_row(label, value, eager[name], comparison, exact))


def _compare(ours: Tensor, honest: Mapping[str, Tensor], reference: Tensor | None, spread: Tensor | None) -> Comparison:
    eager = honest["eager"]
    if reference is None or not _has_reference(eager, reference):
        return compare_to_eager(ours, eager)
    return compare(ours, honest, reference, spread)


def _has_reference(eager: Tensor, reference: Tensor | None) -> bool:
    return eager.is_floating_point() and reference is not None and reference.shape == eager.shape


def _row(name: str, ours: Tensor, eager: Tensor, found: Comparison, reference: Tensor | None) -> OutputRow:
    return OutputRow(
        name=name,
        max_error=found.max_error,
        eager_max_error=found.eager_max_error,
        worst=found.worst,
        top1_agreement=_top1(ours, eager),
        passed=found.worst <= 1.0,
        reference="float64" if _has_reference(eager, reference) else "eager",
    )


def _top1(ours: Tensor, eager: Tensor) -> float | None:
    if eager.dim() == 0 or eager.shape[-1] < _LOGITS or ours.shape != eager.shape:
        return None
    return float((ours.argmax(-1) == eager.argmax(-1)).double().mean())


def _reference(
    workload: Workload, case: Case, dtype: torch.dtype, end: float, check: Check
) -> tuple[Observed | None, dict[str, Tensor]]:
    """The float64 observation, and per output the spread that rounding alone makes."""
    model, on_cuda = workload.model, bool(cuda_devices(workload))

    def run(wobble: float, seed: int) -> Observed:
        higher = raised_model(model)
        args, kwargs = pytree.tree_map(raise_tensor, (case.args, case.kwargs))
        owner = higher if isinstance(higher, nn.Module) else None
        with raised(wobble, seed, plain_attention=on_cuda):
            return observe(higher, owner, Case(args, kwargs))

    try:
        reference = run(0.0, 0)
    except Exception as error:  # whatever the user's code raises in float64: the weaker rule and its note remain
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        _once(check, f"no float64 run of this model exists ({first}); outputs are compared with eager's")
        return None, {}
    squares = {name: torch.zeros_like(value) for name, value in reference.items() if value.is_floating_point()}
    runs = 0
    while runs < _WOBBLES and (runs < _FEWEST or time.monotonic() < end):
        try:
            moved = run(ROUNDOFF.get(dtype, 2.0**-24), runs + 1)
            for name in squares.keys() & moved.keys():
                if moved[name].shape == squares[name].shape:
                    squares[name] += (moved[name] - reference[name]).nan_to_num_(0, 0, 0).square_()
        except torch.OutOfMemoryError:
            _once(check, f"no memory for more than {runs} runs that show what rounding alone may do")
            break
        runs += 1
    if on_cuda:
        torch.cuda.empty_cache()  # the model in float64 is gone; other variants' graphs can't use the allocator's pool
    if not runs:
        return reference, {}
    return reference, {name: total.div_(runs).sqrt_() for name, total in squares.items()}


def _dtype(observed: Observed) -> torch.dtype:
    """The widest unit roundoff among floating outputs: the model's compute dtype, as far as it shows."""
    floats = [value.dtype for value in observed.values() if value.dtype in ROUNDOFF]
    return max(floats, key=ROUNDOFF.__getitem__, default=torch.float32)


def agree(one: Observed, other: Observed) -> bool:
    """Bitwise is too much to ask of threads that share a reduction: close is enough to rule out random numbers."""
    if set(one) != set(other):
        return False
    return all(compare_to_eager(value, other[name]).worst <= 1.0 for name, value in one.items())


def _refused(name: str) -> OutputRow:
    return OutputRow(name=name, max_error=WRONG.max_error, eager_max_error=0.0, worst=WRONG.worst, passed=False)


def _once(check: Check, note: str) -> None:
    if note not in check.notes:
        check.notes.append(note)
