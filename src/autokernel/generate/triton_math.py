"""Functions that generated Triton kernels take along: read as text, never imported. See `mathlib_triton`.

`tl.exp` and `tl.log` are the hardware's approximations, whose error grows with the argument or near 1. These are as
exact as the C library's, in plain arithmetic, so that they are the same on every GPU and in the interpreter.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def nan_max(left, right):
    """The larger, or NaN if either is."""
    return tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_min(left, right):
    """The smaller, or NaN if either is."""
    return tl.minimum(left, right, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(left, right):
    """The product, for reductions."""
    return left * right


@triton.jit
def exact_exp(x):
    """e^x = 2^n · e^r, |r| ≤ ln 2 / 2, within about 1 ulp; 2^n is two factors, so that subnormals round once."""
    x = tl.where(x < -104.0, -104.0, x)
    x = tl.where(x > 90.0, 90.0, x)
    n = tl.floor(x * 1.44269504 + 0.5)
    r = x - n * 0.693359375
    r = r + n * 2.12194440e-4
    p = 1.3814555e-3 * r + 8.3687360e-3
    p = p * r + 4.1668390e-2
    p = p * r + 1.6666520e-1
    p = p * r + 0.49999993
    p = p * (r * r) + r + 1.0
    power = n.to(tl.int32)
    half = power >> 1
    low = ((half + 127) << 23).to(tl.float32, bitcast=True)
    high = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
    return p * low * high


@triton.jit
def exact_expm1(x):
    """e^x - 1: a polynomial near 0, where the subtraction would cancel."""
    p = 1.9849805e-4 * x + 1.3996178e-3
    p = p * x + 8.3335791e-3
    p = p * x + 4.1665359e-2
    p = p * x + 1.6666664e-1
    p = p * x + 0.5
    return tl.where(tl.abs(x) < 0.5, p * (x * x) + x, exact_exp(x) - 1.0)


@triton.jit
def exact_log(x):
    """log(m · 2^n), √½ ≤ m < √2, within about 1 ulp."""
    tiny = x < 1.17549435e-38
    bits = tl.where(tiny, x * 33554432.0, x).to(tl.int32, bitcast=True)
    power = (bits - 0x3F3504F3) >> 23
    n = power.to(tl.float32) - tl.where(tiny, 25.0, 0.0)
    f = (bits - (power << 23)).to(tl.float32, bitcast=True) - 1.0
    p = 0.067466436 * f - 0.11675761
    p = p * f + 0.11888222
    p = p * f - 0.12405576
    p = p * f + 0.14219543
    p = p * f - 0.16667996
    p = p * f + 0.20002119
    p = p * f - 0.2500001
    p = p * f + 0.33333313
    square = f * f
    low = p * (square * f) - n * 2.12194440e-4
    low = low - 0.5 * square
    result = n * 0.693359375 + (f + low)
    result = tl.where(x == float("inf"), x, result)
    result = tl.where(x == 0.0, float("-inf"), result)
    return tl.where(x >= 0.0, result, float("nan"))


@triton.jit
def exact_log1p(x):
    """log(1 + x), corrected for what 1 + x rounds away."""
    total = 1.0 + x
    lost = x - (total - 1.0)
    result = exact_log(total) + lost / total
    result = tl.where((tl.abs(x) < 5.9604645e-8) | (x == float("inf")), x, result)
    return tl.where(total == 0.0, float("-inf"), result)


@triton.jit
def exact_tanh(x):
    """An odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) above."""
    size = tl.abs(x)
    square = x * x
    p = -5.7049695e-3 * square + 2.0639070e-2
    p = p * square - 5.3739710e-2
    p = p * square + 0.13331442
    p = p * square - 0.33333282
    near = p * (square * x) + x
    far = 1.0 - tl.div_rn(2.0, exact_exp(size + size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0.0, -far, far))
