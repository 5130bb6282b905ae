"""The decompositions that `lower` uses: torch's core ATen set, our own norms, and what must stay whole.

Our own forms exist where torch's hide a reduction in one operator (`var_mean`), come out in-place (`rms_norm`'s C++
composite) or differ from what people write: a norm written out and the library call must lower to the same graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

FUSED_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_MATRIX = ("addmm", "baddbmm", "addmv", "addbmm", "mv", "dot")
_ALSO = (
    "_softmax",
    "_log_softmax",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "gelu",
    "silu",
    "native_group_norm",
    "_unsafe_view",
    "linalg_vector_norm",
    "norm",
    "logsumexp",
    "hardswish",
    "hardsigmoid",
    "mish",
    "softplus",
    "elu",
    "leaky_relu",
    "log_sigmoid_forward",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "roll",
    "repeat",
    "tril",
    "triu",
    "masked_fill",
    "addcmul",
    "addcdiv",
    "lerp",
    "glu",
    "aminmax",
)
_HALF = (torch.float16, torch.bfloat16)


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in _HALF else x


def _rms_norm(x: Tensor, normalized: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """As ATen composes it: accumulate in fp32, scale by the weight there too, round once."""
    dims = list(range(x.dim() - len(normalized), x.dim()))
    wide = _widen(x)
    if eps is None:
        eps = torch.finfo(wide.dtype).eps
    out = wide * torch.rsqrt((wide * wide).mean(dims, keepdim=True) + eps)
    if weight is not None:
        out = out * weight
    return out.to(x.dtype)


def _layer_norm(
    x: Tensor, normalized: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Two passes over the row: mean, then mean of the squared deviations (ATen's own is as accurate, in fp32)."""
    dims = list(range(x.dim() - len(normalized), x.dim()))
    wide = _widen(x)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    rstd = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * rstd
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(x.dtype), mean, rstd


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _widen(x).reshape(n, groups, -1)
    mean = rows.mean([2], keepdim=True)
    centred = rows - mean
    rstd = torch.rsqrt((centred * centred).mean([2], keepdim=True) + eps)
    out = (centred * rstd).reshape(x.shape)
    shape = [1, c] + [1] * (x.dim() - 2)
    if weight is not None:
        out = out * weight.reshape(shape)
    if bias is not None:
        out = out + bias.reshape(shape)
    return out.to(x.dtype), mean.reshape(n, groups), rstd.reshape(n, groups)


def _batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = [1, -1] + [1] * (x.dim() - 2)
    wide = _widen(x)
    out = (wide - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + eps)
    if weight is not None:
        out = out * weight.reshape(shape)
    if bias is not None:
        out = out + bias.reshape(shape)
    return out.to(x.dtype), x.new_empty(0), x.new_empty(0)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Any:
    """Inference only: train mode reduces over the batch and updates its buffers, and stays the operator it is."""
    if training or mean is None or var is None:
        return NotImplemented
    return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)[0]


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training or mean is None or var is None:
        return NotImplemented
    return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = [d % x.dim() for d in dim] if dim else list(range(x.dim()))
    count = 1
    for d in dims:
        count *= x.shape[d]
    wide = _widen(x)
    centred = wide - wide.mean(dims, keepdim=True)
    divisor = max(count - (1 if correction is None else correction), 0)
    return ((centred * centred).sum(dims, keepdim=keepdim) / divisor).to(x.dtype)


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = [d % x.dim() for d in dim] if dim else list(range(x.dim()))
    return _var(x, dims, correction=correction, keepdim=keepdim), x.mean(dims, keepdim=keepdim)


def _std(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return torch.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amax(dim, keepdim=keepdim), x.argmax(dim, keepdim=keepdim)


def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amin(dim, keepdim=keepdim), x.argmin(dim, keepdim=keepdim)


# Composites that C++ would decompose before a table is asked: replaced while the composite-level graph runs.
COMPOSITES: dict[Any, Callable[..., Any]] = {
    aten.rms_norm.default: _rms_norm,
    aten.batch_norm.default: _batch_norm,
}


@functools.cache
def decomposition_table(whole: bool) -> dict[Any, Callable[..., Any]]:
    """Torch's core ATen set, plus what still hides a reduction, minus matrix products (and attention, if `whole`)."""
    extra = [getattr(aten, name) for name in _ALSO if hasattr(aten, name)]
    found = {**core_aten_decompositions(), **get_decompositions(extra)}
    for name in (*_MATRIX, *(FUSED_ATTENTION if whole else ())):
        packet = getattr(aten, name)
        for overload in packet.overloads():
            found.pop(getattr(packet, overload), None)
    found[aten.native_layer_norm.default] = _layer_norm
    found[aten.native_group_norm.default] = _group_norm
    found[aten._native_batch_norm_legit_no_training.default] = _batch_norm_inference
    found[aten.native_batch_norm.default] = _native_batch_norm
    found[aten.var.correction] = _var
    found[aten.std.correction] = _std
    found[aten.var_mean.correction] = _var_mean
    found[aten.max.dim] = _max_dim
    found[aten.min.dim] = _min_dim
    return found
