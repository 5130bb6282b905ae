"""Attention by one named backend, as operators that a compiler passes through: no choice is left to make at run time.

    autokernel_attention::flash      CUDA: FlashAttention. CPU: the fused kernel that torch has there.
    autokernel_attention::cudnn      CUDA
    autokernel_attention::efficient  CUDA: memory-efficient attention

Without a mask the ATen kernel is called directly. With one, `scaled_dot_product_attention` is called under
`sdpa_kernel`, which converts and pads the mask as each backend needs it (18 µs of host time a call, none inside a
CUDA graph). No dropout, so no random state is read; nothing synchronises.

The caller says which strides the output has (`native_stride`); an output that comes with others is copied. So the fake
implementation is right by construction, also where torch's own meta function is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten
NAMESPACE = "autokernel_attention"
BACKENDS: dict[str, tuple[str, ...]] = {"cuda": ("flash", "cudnn", "efficient"), "cpu": ("flash",)}
_SDP = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, bool gqa, int[] stride) -> Tensor"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
Kernel = Callable[[Tensor, Tensor, Tensor, bool, "float | None"], Tensor]


def overload(backend: str) -> Any:
    """The operator of a backend, for a graph. Raises KeyError for an unknown name."""
    if backend not in _SDP:
        raise KeyError(f"no attention backend is called {backend!r}; there are {', '.join(_SDP)}")
    return getattr(getattr(torch.ops, NAMESPACE), backend).default


def native_stride(backend: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> tuple[int, ...]:
    """The strides in which a backend writes its output, by its meta function; `q`, `k`, `v` are fake tensors."""
    return tuple(_direct(backend, q.device.type)(q, k, v, False, scale).stride())


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, causal, scale=scale)[0]
    return out


def _flash_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, causal, scale=scale)[0]
    return out


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_cudnn_attention.default(q, k, v, None, False, 0.0, causal, scale=scale)[0]
    return out


def _efficient(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_efficient_attention.default(q, k, v, None, False, 0.0, causal, scale=scale)[
        0
    ]
    return out


def _direct(backend: str, device: str) -> Kernel:
    if device == "cpu" and backend == "flash":
        return _flash_cpu
    return {"flash": _flash, "cudnn": _cudnn, "efficient": _efficient}[backend]


def _implementation(backend: str, device: str) -> Callable[..., Tensor]:
    kernel, chosen = _direct(backend, device), _SDP[backend]

    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        gqa: bool,
        stride: Sequence[int],
    ) -> Tensor:
        if mask is None:
            out = kernel(q, k, v, causal, scale)
        else:
            with sdpa_kernel(chosen):
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa)
        return out if out.stride() == tuple(stride) else _laid_out(out, stride)

    return run


def _laid_out(out: Tensor, stride: Sequence[int]) -> Tensor:
    return torch.empty_strided(out.shape, stride, dtype=out.dtype, device=out.device).copy_(out)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    gqa: bool,
    stride: Sequence[int],
) -> Tensor:
    return q.new_empty_strided((*q.shape[:-1], v.shape[-1]), tuple(stride))


for _backend in _SDP:
    _library.define(f"{_backend}{_SCHEMA}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    torch.library.register_fake(f"{NAMESPACE}::{_backend}", _fake, lib=_library)
    for _device, _names in BACKENDS.items():
        if _backend in _names:
            _library.impl(_backend, _implementation(_backend, _device), _device.upper())
