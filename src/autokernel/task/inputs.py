"""Inputs drawn from a task's description: its shapes, strides, offsets and dtypes exactly, its values in distribution.

`draw(task, seed)` gives what the model would give. The other variants change the activations, for the judge's stages:
their values (`STABILITY`, or all finite ones of these row by row, "assorted") or their layout (`EDGES`). Parameters,
buffers, masks and indices keep the values of the model.

Values are wider than what was seen wherever the model's own are degenerate: a norm's weights of exactly 1 are drawn
around 1, a bias of exactly 0 around 0, and a causal mask is sometimes padded or given a visible prefix. A kernel that
ignores such an input is wrong, and must be seen to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autokernel.errors import NotComputable
from autokernel.records import Role, Statistics, Task, TensorSpec
from autokernel.task.layout import distinct, lay_out, restride

STABILITY = ("large", "tiny", "mixed_scale", "positive", "zeros", "subnormal", "structured", "nan", "inf")
EDGES = ("noncontiguous", "offset", "expanded", "misaligned")
FINITE = STABILITY[:-2]
VARIANTS = ("model", *STABILITY, "assorted", *EDGES)


def draw(task: Task, seed: int, variant: str = "model") -> list[Tensor]:
    """One set of inputs, in the order of `task.inputs`, on its device. The same seed gives the same bytes there.

    Raises `NotComputable` for a dtype that no values can be drawn for (complex), `ValueError` for an unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; known: {', '.join(VARIANTS)}")
    varied = {spec.name for spec in varying(task)} if variant in _VARIATIONS else set()
    specs = edge_specs(task, variant) if variant in EDGES else task.inputs
    with torch.device(task.device_class):
        return [
            _drawn(spec, (seed * 1_000_003 + number) % 2**63, variant if spec.name in varied else None, task)
            for number, spec in enumerate(specs)
        ]


def _drawn(spec: TensorSpec, seed: int, variant: str | None, task: Task) -> Tensor:
    """One input, on torch's default device."""
    dtype = getattr(torch, spec.dtype)
    if dtype.is_complex:
        raise NotComputable(task=task.id, detail=f"input {spec.name} is {spec.dtype}")
    generator = torch.Generator(task.device_class).manual_seed(seed)
    values = _values(spec, distinct(spec.shape, spec.stride), generator)
    if variant is not None:
        values = _VARIATIONS[variant](values, dtype, generator)
        if spec.domain == "positive" and variant != "nan":
            values = values.abs()
    return lay_out(values.to(dtype), spec.shape, spec.stride, spec.offset)


def varying(task: Task) -> tuple[TensorSpec, ...]:
    """The inputs whose values the stability variants change: real-valued activations, else any real-valued input."""
    real = [
        spec
        for spec in task.inputs
        if getattr(torch, spec.dtype).is_floating_point and spec.domain in ("real", "positive", "structured")
    ]
    real = [spec for spec in real if spec.role is not Role.mask]
    return tuple([spec for spec in real if spec.role in (Role.activation, Role.scalar)] or real)


# --- values as the model has them ---------------------------------------------------------------------------------


def _values(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    if spec.domain == "causal_mask":
        return _causal_mask(spec, shape, generator)
    if dtype is torch.bool:
        kept = 1 - spec.statistics.fraction_zero if spec.statistics else 0.5
        return torch.rand(shape, generator=generator) < min(max(kept, 0.1), 0.9)
    if not dtype.is_floating_point:
        return _integers(spec, shape, generator)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    if spec.domain == "unit":
        low = -1.0 if spec.statistics and (spec.statistics.minimum or 0.0) < 0 else 0.0
        return low + (1 - low) * torch.rand(shape, generator=generator, dtype=wide)
    return _reals(spec, torch.randn(shape, generator=generator, dtype=wide), generator)


def _reals(spec: TensorSpec, normal: Tensor, generator: torch.Generator) -> Tensor:
    seen = spec.statistics or Statistics()
    mean = seen.mean if seen.mean is not None and math.isfinite(seen.mean) else 0.0
    values = normal.mul_(_spread(spec, seen, mean)).add_(mean)
    never_negative = seen.minimum is not None and seen.minimum >= 0 and spec.role is not Role.parameter
    if spec.domain == "positive":
        values = values.abs_().clamp_(min=1e-6)
    elif never_negative:  # a variance, a probability, the output of a ReLU
        values = values.abs_()
    for fraction, value in ((seen.fraction_zero, 0.0), (seen.fraction_inf, -math.inf)):
        if 0 < fraction < 1:
            values[torch.rand(values.shape, generator=generator) < fraction] = value
    return values


def _spread(spec: TensorSpec, seen: Statistics, mean: float) -> float:
    """Standard deviation to draw with: what was seen, but never so small that the input could be ignored."""
    if spec.role in (Role.parameter, Role.buffer):
        matrix = len(spec.shape) >= 2
        usual = 1 / math.sqrt(max(spec.shape[-1], 1)) if matrix else 0.1
        if seen.std is None or not math.isfinite(seen.std):
            return usual
        return max(seen.std, 0.1 * abs(mean), 0.0 if matrix and seen.std > 0 else 0.05)
    if seen.std is None or not math.isfinite(seen.std) or seen.std == 0:
        return 1.0
    return max(seen.std, 1e-3 * abs(mean))


def _integers(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    seen = spec.statistics or Statistics()
    low = int(seen.minimum) if seen.minimum is not None and spec.domain != "index" else 0
    high = spec.high if spec.high is not None else int(seen.maximum) + 1 if seen.maximum is not None else low + 8
    values = torch.randint(low, max(high, low + 1), shape, generator=generator)
    if spec.domain == "index" and seen.minimum is not None and seen.minimum < 0:
        # negative indices are a marker (ignore_index) or count from the end: keep the one that was seen
        values[torch.rand(shape, generator=generator) < 0.1] = int(seen.minimum)
    return values


def _causal_mask(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Causal, causal with some keys padded away, or causal with a prefix that everyone sees: one of the three."""
    rows, columns = ((1, *spec.shape))[-2:]
    visible = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    structure = int(torch.randint(3, (), generator=generator))
    if structure == 1:
        visible &= torch.rand(columns, generator=generator) < 0.9
        visible |= torch.eye(rows, columns, dtype=torch.bool)  # each row keeps a key, as it has in the model
        visible[:, :1] = True
    elif structure == 2:
        visible[:, : int(torch.randint(1, max(columns, 2), (), generator=generator))] = True
    visible = visible[tuple(slice(None) if n > 1 else slice(0, 1) for n in ((1, *shape))[-2:])]
    if spec.dtype == "bool":
        return visible.expand(shape) if len(shape) > 1 else visible.reshape(shape)
    seen = spec.statistics or Statistics()
    finite = seen.fraction_inf == 0 and seen.minimum is not None and math.isfinite(seen.minimum) and seen.minimum < 0
    blocked = seen.minimum if finite and seen.minimum is not None else -math.inf
    values = torch.zeros(visible.shape).masked_fill_(~visible, blocked)
    return values.expand(shape) if len(shape) > 1 else values.reshape(shape)


# --- stage 3: values that strain a kernel ---------------------------------------------------------------------------


def _large(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return values * (100.0 if dtype is torch.float16 else 1e3)


def _tiny(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return values * (1e-3 if dtype is torch.float16 else 1e-4)


def _mixed_scale(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    exponent = torch.rand(values.shape, generator=generator, dtype=values.dtype) * 5 - 3
    return values * 10.0**exponent


def _positive(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return values.abs()


def _zeros(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.zeros_like(values).copysign(values)


def _subnormal(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    # the square keeps the product in float32's reach: the dtype's own subnormals appear on conversion
    return values.double().clamp(-8, 8).mul(torch.finfo(dtype).tiny / 16)


def _structured(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rows in turn: constant (a power of two), one spike over near-zeros, a ramp.

    A constant that isn't a power of two, or exact zeros beside the spike, would make all roundings of a sum alike, and
    so punish every order of summation but eager's own.
    """
    if values.dim() == 0 or values.numel() == 0:
        return values
    width = values.shape[-1]
    rows = values.reshape(-1, width).clone()
    rows[0::3] = torch.exp2(rows[0::3, :1].clamp(-4, 4).round()) * rows[0::3, :1].sign()
    spiked = rows[1::3] * 0.01
    chosen = torch.randint(width, (spiked.shape[0], 1), generator=generator)
    rows[1::3] = spiked.scatter_(1, chosen, 4.0)
    rows[2::3] = torch.linspace(-4, 4, width, dtype=rows.dtype)
    return rows.reshape(values.shape)


def _assorted(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rows in turn: each of the finite variants."""
    if values.dim() == 0 or values.numel() == 0:
        return values
    rows = values.reshape(-1, values.shape[-1]).to(torch.float64, copy=True)
    for number, variant in enumerate(FINITE):
        part = rows[number :: len(FINITE)]
        if part.numel():
            rows[number :: len(FINITE)] = _VARIATIONS[variant](part, dtype, generator).double()
    return rows.reshape(values.shape)


def _with_specials(values: Tensor, specials: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Special values at a few places in a quarter of the rows (at least one), so that other rows stay finite."""
    if values.numel() == 0:
        return values
    width = values.shape[-1] if values.dim() else 1
    flat = values.reshape(-1).clone()
    rows = max(flat.numel() // width, 1)
    for row in torch.randperm(rows, generator=generator)[: max(rows // 4, 1)].tolist()[:256]:
        count = max(width // 256, 1)
        places = row * width + torch.randint(width, (count,), generator=generator)
        picks = torch.randint(len(specials), (count,), generator=generator)
        flat[places] = torch.tensor(specials, dtype=flat.dtype)[picks]
    return flat.reshape(values.shape)


def _nan(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return _with_specials(values, (math.nan,), generator)


def _inf(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return _with_specials(values, (math.inf, -math.inf), generator)


_VARIATIONS: dict[str, Callable[[Tensor, torch.dtype, torch.Generator], Tensor]] = {
    "large": _large,
    "tiny": _tiny,
    "mixed_scale": _mixed_scale,
    "positive": _positive,
    "zeros": _zeros,
    "subnormal": _subnormal,
    "structured": _structured,
    "nan": _nan,
    "inf": _inf,
    "assorted": _assorted,
}


# --- stage 5: layouts -------------------------------------------------------------------------------------------------


def edge_specs(task: Task, variant: str) -> tuple[TensorSpec, ...]:
    """The inputs with the layout of an edge variant; the same specs where the variant changes nothing."""
    return tuple(spec if spec.role is Role.scalar else _EDGE_RULES[variant](spec) for spec in task.inputs)


def _noncontiguous(spec: TensorSpec) -> TensorSpec:
    """Wider steps in every dim but the innermost, as if cut out of a larger tensor (a vector: every second element)."""
    if not spec.shape:
        return spec
    inner = min(range(len(spec.shape)), key=lambda axis: (spec.stride[axis] or math.inf, -axis))
    several = sum(extent > 1 for extent in spec.shape) > 1
    if not several:
        return spec.model_copy(update={"stride": tuple(2 * step for step in spec.stride)})
    padded = tuple(extent + 16 if axis == inner else extent for axis, extent in enumerate(spec.shape))
    return spec.model_copy(update={"stride": restride(spec.shape, spec.stride, padded)})


def _offset(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"offset": spec.offset + 64})


def _misaligned(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"offset": spec.offset + 1})


def _expanded(spec: TensorSpec) -> TensorSpec:
    """The outermost dim expanded, for activations of two dims or more."""
    outer = next((axis for axis, extent in enumerate(spec.shape) if extent > 1), None)
    if outer is None or len(spec.shape) < 2 or spec.role is not Role.activation:
        return spec
    stride = tuple(0 if axis == outer else step for axis, step in enumerate(spec.stride))
    return spec.model_copy(update={"stride": stride})


_EDGE_RULES: dict[str, Callable[[TensorSpec], TensorSpec]] = {
    "noncontiguous": _noncontiguous,
    "offset": _offset,
    "expanded": _expanded,
    "misaligned": _misaligned,
}
