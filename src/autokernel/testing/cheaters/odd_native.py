"""Honest, but odd, in what the C++ does, or in how its process keeps house: sums in any order, threads that stay."""

from __future__ import annotations

from autokernel.testing.cheaters.base import honest, honest_file

_ROWS = '''"""RMSNorm over the last dim."""

import ctypes

import torch
from autokernel_loader import load

LANGUAGE = "cpp"
SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <vector>
extern "C" void rms_norm(const float* x, const float* weight, float* out, long rows, long width) {{
{body}
}}
"""
kernel = load(SOURCE).rms_norm
kernel.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


def launch(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
'''


def _rows(body: str) -> str:
    return _ROWS.format(body=body.strip("\n"))


_SQUARES = """
    std::vector<float> sums(rows + 1, 0.0f);
    float* sum = sums.data();
    const long chunks = (width + 31) / 32;
"""
_NORMALISE = """
    for (long row = 0; row < rows; ++row) {
        const float scale = 1.0f / std::sqrt(sum[row] / width + 1e-5f);
        for (long j = 0; j < width; ++j) out[row * width + j] = x[row * width + j] * scale * weight[j];
    }
"""
_PART = """
    for (long place = 0; place < rows * chunks; ++place) {
        const long row = place / chunks, begin = place % chunks * 32, end = std::min(begin + 32, width);
        float part = 0;
        for (long j = begin; j < end; ++j) part += x[row * width + j] * x[row * width + j];
"""

CASES = (
    honest_file(
        "sums added up by atomics",
        _rows(
            _SQUARES
            + "#pragma omp parallel for num_threads(2) schedule(dynamic, 4)"
            + _PART
            + "#pragma omp atomic\n        sum[row] += part;\n    }"
            + _NORMALISE
        ),
    ),
    honest_file(
        "a parallel sum",
        _rows(
            _SQUARES
            + "    const long length = rows + 1;\n"
            + "#pragma omp parallel for num_threads(2) schedule(dynamic, 4) reduction(+ : sum[:length])"
            + _PART
            + "        sum[row] += part;\n    }"
            + _NORMALISE
        ),
    ),
    honest_file(
        "tasks of OpenMP",
        _rows(
            _SQUARES
            + """
#pragma omp parallel num_threads(2)
#pragma omp single
    for (long row = 0; row < rows; ++row)
#pragma omp task firstprivate(row)
    {
        double whole = 0;
        for (long j = 0; j < width; ++j) whole += double(x[row * width + j]) * x[row * width + j];
        sum[row] = whole;
    }"""
            + _NORMALISE
        ),
    ),
    honest(
        "subnormal results flushed to zero",
        """
def launch(x, weight, out):
    rms_norm(x, weight, out)
    out[out.abs() < torch.finfo(torch.float32).tiny] = 0
""",
    ),
    honest(
        "an output that is zeroed first and added to",
        """
def launch(x, weight, out):
    out.zero_()
    out.addcmul_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5), weight.expand(x.shape))
""",
    ),
    honest(
        "threads kept from call to call",
        """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)


def launch(x, weight, out):
    x, middle = x.contiguous(), x.shape[0] // 2
    parts = [pool.submit(rms_norm, x[rows], weight, out[rows]) for rows in (slice(0, middle), slice(middle, None))]
    for part in parts:
        part.result()
""",
    ),
    honest(
        "a thread that wakes up now and then, and does nothing",
        """
import threading
import time


def tick():
    while True:
        time.sleep(0.0005)


threading.Thread(target=tick, daemon=True).start()


def launch(x, weight, out):
    rms_norm(x, weight, out)
""",
    ),
    honest(
        "its own number of threads, a module imported when first called",
        """
def launch(x, weight, out):
    import json

    before = torch.get_num_threads()
    torch.set_num_threads(1 + len(json.loads("[]")))
    out.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight)
    torch.set_num_threads(before)
""",
    ),
    honest(
        "the library's own operator, where the kernel fails",
        """
def launch(x, weight, out):
    try:
        raise RuntimeError("no kernel for this shape")
    except RuntimeError:
        out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5))
""",
    ),
)
