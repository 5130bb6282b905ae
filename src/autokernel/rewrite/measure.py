"""Which attention backend is fastest at a site: each one is tried there, compared with float32, and timed.

A backend that torch's own checks refuse, that raises, or whose result is not that of the unfused float32 computation
is out. Times are medians of three blocks of calls: in a CUDA graph on a GPU, so that the host's time isn't in them.
On the CPU torch has one fused kernel and uses it by itself; it is pinned only where that is clearly slower.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autokernel.rewrite import AttentionSite, TensorLayout
from autokernel.rewrite.pinned import BACKENDS, native_stride, overload

_BLOCK = {"cuda": 0.01, "cpu": 0.03}  # seconds that a timed block is meant to last
_CALLS = (1, 20)
_REPEATS = 3
_SCORES = 2**25  # elements of the score matrix that the comparison holds in float32 (128 MiB, a few times over)
_CPU_GAIN = 1.05  # on the CPU the default is the same kernel: what is less than this is noise
# root mean square of the error over that of the result; fused kernels reach a quarter of it
_ERROR = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-4, "float64": 1e-10}
_TF32_ERROR = 2e-3

_known: dict[AttentionSite, Measured] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Measured:
    """Seconds a call of each backend that works at a site, "default" (torch's own choice) among them.

    `refused`: backend → why it was not timed.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def fastest(self) -> str | None:
        """The fastest backend by name; None when only the default works."""
        named = {name: seconds for name, seconds in self.seconds.items() if name != "default"}
        return min(named, key=lambda name: named[name]) if named else None


def choose_by_measurement(site: AttentionSite) -> str | None:
    """The fastest right backend of a site on the current device, or None when nothing is to be pinned there.

    Each site is measured once a process, in under two seconds on a GPU. The user's random state is not touched.
    """
    measured = measure(site)
    best = measured.fastest
    if best is not None and site.device == "cpu":
        default = measured.seconds.get("default")
        return best if default is None or default > measured.seconds[best] * _CPU_GAIN else None
    return best


def measure(site: AttentionSite) -> Measured:
    """All that is known of a site's backends; measured on first use."""
    key = dataclasses.replace(site, count=1)
    with _lock:  # two measurements at once would time each other
        if key not in _known:
            with torch.no_grad():
                _known[key] = _measure(key)
        return _known[key]


def _measure(site: AttentionSite) -> Measured:
    result = Measured()
    try:
        q, k, v, mask = _inputs(site)
        expected = _expected(site, q, k, v, mask)
    except torch.OutOfMemoryError as error:
        result.refused.update({name: f"no room to try it: {_line(error)}" for name in BACKENDS[site.device]})
        return result
    for name in (*BACKENDS[site.device], "default"):
        barred = _barred(name, site, q, k, v, mask) if name != "default" else None
        if barred is not None:
            result.refused[name] = barred
            continue
        call = _call(name, site, q, k, v, mask)
        try:
            wrong = _wrong(site, call(), expected)
            if wrong is None:
                result.seconds[name] = _seconds(call, site.device)
            else:
                result.refused[name] = wrong
        except (RuntimeError, NotImplementedError) as error:  # out of memory is a RuntimeError too
            result.refused[name] = _line(error)
    return result


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _inputs(site: AttentionSite) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    generator = torch.Generator(site.device).manual_seed(0)

    def random(layout: TensorLayout) -> Tensor:
        """Random storage seen with the site's strides, which may overlap (an expanded tensor)."""
        steps = zip(layout.shape, layout.stride, strict=True)
        reach = 1 + sum((size - 1) * step for size, step in steps)
        dtype = getattr(torch, layout.dtype)
        if dtype == torch.bool:
            flat = torch.rand(reach, device=site.device, generator=generator) > 0.25
        else:
            flat = torch.randn(reach, device=site.device, generator=generator, dtype=torch.float32).to(dtype)
        return flat.as_strided(layout.shape, layout.stride)

    mask = None if site.given is None else random(site.given)
    return random(site.q), random(site.k), random(site.v), mask


def _expected(site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Unfused attention in float32 (float64 stays) of the first batch entries and heads that fit into memory."""
    batch, heads = _compared(site)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    each = site.q.shape[1] // site.k.shape[1]
    k, v = (t[:batch].repeat_interleave(each, dim=1)[:, :heads].to(wide) for t in (k, v))
    if mask is not None:
        mask = mask.expand(*site.q.shape[:-1], site.k.shape[2])[:batch, :heads]
        mask = mask if mask.dtype == torch.bool else mask.to(wide)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q[:batch, :heads].to(wide), k, v, attn_mask=mask, is_causal=site.mask == "causal", scale=site.scale
        )


def _compared(site: AttentionSite) -> tuple[int, int]:
    """How many batch entries and heads are compared."""
    batch, heads, queries, _ = site.q.shape
    one = queries * site.k.shape[2]
    heads = max(1, min(heads, _SCORES // one))
    return max(1, min(batch, _SCORES // (one * heads))), heads


def _barred(name: str, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Why a backend isn't even tried: what torch's dispatcher would not call may be an illegal access on the GPU."""
    if site.device != "cuda":
        return None
    if name != "efficient" and (q.shape[-1] % 8 or v.shape[-1] % 8):
        return "heads of this width are padded by the dispatcher, not by the kernel"
    from torch.backends import cuda

    params = cuda.SDPAParams(q, k, v, mask, 0.0, site.mask == "causal", site.gqa)
    asked = {
        "flash": cuda.can_use_flash_attention,
        "cudnn": cuda.can_use_cudnn_attention,
        "efficient": cuda.can_use_efficient_attention,
    }
    return None if asked[name](params) else "torch's own checks refuse it here"


def _call(name: str, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Callable[[], Tensor]:
    causal = site.mask == "causal"
    if name == "default":
        return lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=site.scale, enable_gqa=site.gqa
        )
    mode = torch._subclasses.FakeTensorMode()
    fakes = [mode.from_tensor(value) for value in (q, k, v)]
    with mode:
        stride = native_stride(name, fakes[0], fakes[1], fakes[2])
    op = overload(name)
    return lambda: op(q, k, v, mask, causal, site.scale, site.gqa, stride)


def _wrong(site: AttentionSite, out: Tensor, expected: Tensor) -> str | None:
    """Why a result is not the expected one. Rows that see no key are NaN in some backends, and not compared."""
    batch, heads = _compared(site)
    seen = torch.isfinite(expected)
    error = torch.where(seen, out[:batch, :heads].to(expected.dtype) - expected, 0.0)
    scale = torch.where(seen, expected, 0.0).square().mean().sqrt().item()
    relative = error.square().mean().sqrt().item() / max(scale, torch.finfo(expected.dtype).tiny)
    tf32 = site.device == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32" and site.q.dtype == "float32"
    limit = _TF32_ERROR if tf32 else _ERROR[site.q.dtype]
    return None if relative <= limit else f"its error is {relative:.2g} of the result, more than {limit:.2g}"


def _seconds(call: Callable[[], Tensor], device: str) -> float:
    """Seconds a call: the median of some blocks, each long enough for the clock."""
    low, high = _CALLS
    calls = max(low, min(high, int(_BLOCK[device] / max(_loop(call, 1, device), 1e-7))))
    block = _graph_block(call, calls) if device == "cuda" else lambda: _loop(call, calls, device)
    return statistics.median(block() for _ in range(_REPEATS)) / calls


def _loop(call: Callable[[], Tensor], calls: int, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return time.perf_counter() - begin


def _graph_block(call: Callable[[], Tensor], calls: int) -> Callable[[], float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # cuDNN builds its plan, and workspaces are made, before the capture
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run() -> float:
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return run
