"""Kernels whose arithmetic is known to be honest, or known to be wrong, to try the oracle and the tolerance on.

Each kind of region that is generated has two honest kernels, which sum in different orders, and its mutants: one fault
each, as authors make them. They are written in PyTorch and run in this process; what judges them is the judge's own
comparison, on the inputs of its own stages. A mutant that can't be told from an honest kernel on any input is none, and
is counted apart: its results are the honest ones (a shift by one in rows of one element), or within three units in the
last place of the exact ones, or its error is at most twice eager's (sums in bfloat16 for a bfloat16 output).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from autokernel.judge.cases import Case, Cases
from autokernel.judge.seeds import Seeds
from autokernel.judge.tolerance import compare
from autokernel.task.file import from_file
from autokernel.task.inputs import STABILITY

Kernel = Callable[..., Tensor]
Sum = Callable[[Tensor], Tensor]  # over the last dim, which stays with one element

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ((64, 200), (7, 1023), (33, 1), (1, 4096), (128, 257))
EPS = 1e-5
_UNITS = 3.0


@dataclass(frozen=True)
class Kind:
    """`body`: the forward of its reference, `inputs`: how they are made from a shape and a dtype."""

    body: str
    inputs: Callable[[tuple[int, int], str], str]
    make: Callable[[Sum], Kernel]
    mutants: Mapping[str, Kernel]
    only: tuple[str, ...] = DTYPES  # dtypes


# --- sums -------------------------------------------------------------------------------------------------------------


def sum_in_lanes(values: Tensor, lanes: int) -> Tensor:
    """Row sums, `lanes` running ones and then those pairwise, in the dtype of the values."""
    padded = F.pad(values, (0, -values.shape[-1] % lanes))
    parts = padded.reshape(*padded.shape[:-1], -1, lanes)
    total = torch.zeros_like(parts[..., 0, :])
    for step in range(parts.shape[-2]):
        total = total + parts[..., step, :]
    while total.shape[-1] > 1:
        total = total[..., ::2] + total[..., 1::2]
    return total


def reversed_pairwise(values: Tensor) -> Tensor:
    """Row sums by halves, from the end."""
    total = values.flip(-1)
    while total.shape[-1] > 1:
        total = F.pad(total, (0, total.shape[-1] % 2))
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total


def in_bfloat16(values: Tensor) -> Tensor:
    return sum_in_lanes(values.bfloat16(), 8).to(values.dtype)


ORDERS: dict[str, Sum] = {
    "32 lanes": functools.partial(sum_in_lanes, lanes=32),
    "pairwise from the end": reversed_pairwise,
}
_HONEST = ORDERS["32 lanes"]


def tf32(values: Tensor) -> Tensor:
    """Rounded to the 10 bits of mantissa that TF32 keeps."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _rms_norm(total: Sum, eps: float = EPS, keep_nan: bool = True) -> Kernel:
    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float() if keep_nan else x.float().nan_to_num(0.0, torch.inf, -torch.inf)
        scale = torch.rsqrt(total(wide * wide) / x.shape[-1] + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    return kernel


def _layer_norm(total: Sum, eps: float = EPS, centred: bool = True) -> Kernel:
    def kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide, width = x.float(), x.shape[-1]
        apart = wide - total(wide) / width
        scale = torch.rsqrt(total(apart * apart) / width + eps)
        return ((apart if centred else wide) * scale * weight.float() + bias.float()).to(x.dtype)

    return kernel


def _softmax(total: Sum, shifted: bool = True, drops_nan: bool = False) -> Kernel:
    def kernel(x: Tensor) -> Tensor:
        wide = x.float().nan_to_num(-torch.inf, torch.inf, -torch.inf) if drops_nan else x.float()
        e = torch.exp(wide - wide.amax(-1, keepdim=True) if shifted else wide)
        return (e / total(e)).to(x.dtype)

    return kernel


def _log_softmax(total: Sum, shifted: bool = True) -> Kernel:
    def kernel(x: Tensor) -> Tensor:
        wide = x.float()
        apart = wide - wide.amax(-1, keepdim=True) if shifted else wide
        return (apart - total(apart.exp()).log()).to(x.dtype)

    return kernel


def _row_mean(total: Sum) -> Kernel:
    return lambda x: (total(x.float()) / x.shape[-1]).squeeze(-1).to(x.dtype)


def _column_sum(total: Sum) -> Kernel:
    return lambda x: total(x.float().mT.contiguous()).squeeze(-1).to(x.dtype)


def _gelu(_: Sum) -> Kernel:
    return lambda x: (0.5 * x.float() * (1 + torch.erf(x.float() * 0.7071067811865476))).to(x.dtype)


def _swiglu(_: Sum) -> Kernel:
    return lambda x, up: ((x.float() / (1 + torch.exp(-x.float()))).to(x.dtype).float() * up.float()).to(x.dtype)


def _product(total: Sum, rounded: Callable[[Tensor], Tensor] = lambda value: value) -> Kernel:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return total(rounded(a.float())[:, None, :] * rounded(b.float()).mT[None, :, :]).squeeze(-1).to(a.dtype)

    return kernel


# --- mutants of anything ----------------------------------------------------------------------------------------------


def _tail_zeroed(kernel: Kernel) -> Kernel:
    def mutant(*inputs: Tensor) -> Tensor:
        out = kernel(*inputs).clone()
        out[..., out.shape[-1] - max(out.shape[-1] // 16, 1) :] = 0
        return out

    return mutant


def _scaled(kernel: Kernel) -> Kernel:
    return lambda *inputs: (kernel(*inputs).float() * 1.05).to(inputs[0].dtype)


def _one_off(kernel: Kernel) -> Kernel:
    return lambda *inputs: kernel(*inputs).roll(1, -1)


def _any(kernel: Kernel) -> dict[str, Kernel]:
    return {"tail zeroed": _tail_zeroed(kernel), "5 % too large": _scaled(kernel), "index off by one": _one_off(kernel)}


def _sums(make: Callable[[Sum], Kernel]) -> dict[str, Kernel]:
    return {**_any(make(_HONEST)), "sums in bfloat16": make(in_bfloat16)}


# --- kinds ------------------------------------------------------------------------------------------------------------


def _drawn(*shapes: Callable[[int, int], tuple[int, ...]]) -> Callable[[tuple[int, int], str], str]:
    def inputs(shape: tuple[int, int], dtype: str) -> str:
        return ", ".join(f"torch.randn({make(*shape)}, dtype=torch.{dtype})" for make in shapes)

    return inputs


def _matrix(rows: int, width: int) -> tuple[int, ...]:
    return rows, width


def _row(rows: int, width: int) -> tuple[int, ...]:
    return (width,)


def _across(rows: int, width: int) -> tuple[int, ...]:
    return width, 24


KINDS: dict[str, Kind] = {
    "rms norm": Kind(
        "F.rms_norm(a, (a.shape[-1],), b, 1e-5)",
        _drawn(_matrix, _row),
        _rms_norm,
        {
            **_sums(_rms_norm),
            "wrong eps": _rms_norm(_HONEST, eps=1e-3),
            "NaN taken for 0": _rms_norm(_HONEST, keep_nan=False),
        },
    ),
    "layer norm": Kind(
        "F.layer_norm(a, (a.shape[-1],), b, c, 1e-5)",
        _drawn(_matrix, _row, _row),
        _layer_norm,
        {
            **_sums(_layer_norm),
            "wrong eps": _layer_norm(_HONEST, eps=1e-3),
            "mean not subtracted": _layer_norm(_HONEST, centred=False),
        },
    ),
    "softmax": Kind(
        "torch.softmax(a, -1)",
        _drawn(_matrix),
        _softmax,
        {
            **_sums(_softmax),
            "maximum not subtracted": _softmax(_HONEST, shifted=False),
            "NaN left out": _softmax(_HONEST, drops_nan=True),
        },
    ),
    "log-softmax": Kind(
        "torch.log_softmax(a, -1)",
        _drawn(_matrix),
        _log_softmax,
        {**_sums(_log_softmax), "maximum not subtracted": _log_softmax(_HONEST, shifted=False)},
    ),
    "row mean": Kind("a.mean(-1)", _drawn(_matrix), _row_mean, _sums(_row_mean)),
    "column sum": Kind("a.sum(0)", _drawn(_matrix), _column_sum, _sums(_column_sum)),
    "gelu": Kind("F.gelu(a)", _drawn(_matrix), _gelu, _any(_gelu(_HONEST))),
    "swiglu": Kind("F.silu(a) * b", _drawn(_matrix, _matrix), _swiglu, _any(_swiglu(_HONEST))),
    "matrix product": Kind(
        "a @ b",
        _drawn(_matrix, _across),
        _product,
        {**_sums(_product), "TF32": _product(_HONEST, rounded=tf32)},
        only=("float32",),
    ),
}

_TEXT = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, {names}):
        return {body}


def get_inputs():
    return [{inputs}]
"""


@dataclass(frozen=True)
class Trial:
    """One kernel on one task's inputs. `stage`: the first inputs that it was refused on, "" where it was accepted.

    `within_rounding`: a mutant that is none on these inputs.
    """

    kind: str
    dtype: str
    shape: tuple[int, int]
    kernel: str
    honest: bool
    stage: str
    explanation: str
    within_rounding: bool = False


def trials(kind: str, dtype: str, shape: tuple[int, int]) -> Iterator[Trial]:
    """Every honest kernel and mutant of a kind on fresh inputs: two draws at the shape, then all stability inputs."""
    chosen = KINDS[kind]
    names = "abc"[: chosen.inputs(shape, dtype).count("torch.randn")]
    text = _TEXT.format(names=", ".join(names), body=chosen.body, inputs=chosen.inputs(shape, dtype))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference.py"
        path.write_text(text, encoding="utf-8")
        cases = Cases(from_file(path), Seeds.fresh())
        made = [cases.make("first values"), cases.make("second values")]
        made += [cases.make(variant, variant) for variant in STABILITY]
        honest = {name: chosen.make(order) for name, order in ORDERS.items()}
        right = [honest["32 lanes"](*case.inputs) for case in made]
        for name, kernel in (*honest.items(), *chosen.mutants.items()):
            results = [kernel(*case.inputs) for case in made]
            stage, words = _refused(made, results)
            same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(results, right, strict=True))
            none = name not in honest and (same or all(map(_within_rounding, made, results)))
            yield Trial(kind, dtype, shape, name, name in honest, stage, words, none)


def _refused(cases: list[Case], results: list[Tensor]) -> tuple[str, str]:
    for case, result in zip(cases, results, strict=True):
        found = compare("out", result, case.expected[0])
        if found.reason is not None:
            return case.name, found.explanation
    return "", ""


def _within_rounding(case: Case, result: Tensor) -> bool:
    """Whether a result can't be told from an honest one, by a rule that is not the judge's (see above)."""
    expected = case.expected[0]
    finite = expected.eager.isfinite() & expected.reference.isfinite()
    if not torch.equal(result.isfinite(), expected.eager.isfinite()):
        return False
    wide = expected.reference[finite]
    mine, eager = ((value[finite].double() - wide).abs() for value in (result, expected.eager))
    if not mine.numel():
        return True
    info = torch.finfo(result.dtype)
    units = mine / (wide.abs().clamp(min=info.smallest_normal).log2().floor().exp2() * info.eps)
    if float(units.max()) <= _UNITS:
        return True
    return all(
        float(measure(mine)) <= 2 * float(measure(eager))
        for measure in (torch.linalg.vector_norm, lambda error: error.max())
    )
