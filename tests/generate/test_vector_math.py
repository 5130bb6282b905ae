"""The header's functions over all floats (every 997th bit pattern), against float64."""

import ctypes

import pytest
import torch

from autokernel.generate.mathlib import header, sections_for

# unit: errors of a correctly rounded function are ≤ 0.5
LIMITS = {"exp": 1.1, "log": 1.0, "expm1": 1.8, "log1p": 1.6, "tanh": 1.5, "erf": 1.5}
REFERENCES = {name: getattr(torch, name) for name in LIMITS}


@pytest.fixture(scope="module")
def library(cpp, tmp_path_factory):
    from autokernel_loader import load

    loops = [
        f'extern "C" void run_{name}(const float* __restrict x, float* __restrict y, int64_t n) {{\n'
        f"    #pragma omp simd\n    for (int64_t j = 0; j < n; ++j) y[j] = simd_{name}(x[j]);\n}}\n"
        for name in (*LIMITS, "sigmoid")
    ]
    for source, target, name in (
        ("uint16_t", "float", "float16_to_float"),
        ("uint16_t", "float", "bfloat16_to_float"),
        ("float", "uint16_t", "float_to_float16"),
        ("float", "uint16_t", "float_to_bfloat16"),
    ):
        loops.append(
            f'extern "C" void run_{name}(const {source}* __restrict x, {target}* __restrict y, int64_t n) {{\n'
            f"    for (int64_t j = 0; j < n; ++j) y[j] = {name}(x[j]);\n}}\n"
        )
    return load("#include <cmath>\n#include <cstdint>\n" + header() + "".join(loops))


def call(library, name, x, dtype):
    y = torch.empty(x.shape, dtype=dtype)
    function = getattr(library, f"run_{name}")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(x.data_ptr(), y.data_ptr(), x.numel())
    return y


@pytest.fixture(scope="module")
def floats():
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 88.72284, -103.97])
    return torch.cat((torch.arange(0, 2**32, 997, dtype=torch.int64).to(torch.int32).view(torch.float32), special))


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_it_is_within_its_stated_error_over_all_floats(library, floats, name):
    found = call(library, name, floats, torch.float32)
    exact = REFERENCES[name](floats.double())
    rounded = exact.float()
    assert torch.equal(found.isnan(), rounded.isnan())
    assert torch.equal(found.isinf(), rounded.isinf())
    assert torch.equal(found[found.isinf()], rounded[rounded.isinf()])
    finite = rounded.isfinite()
    unit = (torch.nextafter(rounded.abs(), torch.tensor(float("inf"))) - rounded.abs()).clamp(min=1.4e-45).double()
    error = ((found.double() - exact).abs() / unit)[finite]
    assert error.max() <= LIMITS[name]


def test_sigmoid_is_pytorchs_formula(library, floats):
    found, eager = call(library, "sigmoid", floats, torch.float32), torch.sigmoid(floats)
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.allclose(found.nan_to_num(), eager.nan_to_num(), rtol=3e-7, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_convert_as_pytorch_does(library, floats, dtype):
    name = str(dtype).removeprefix("torch.")
    rounded = call(library, f"float_to_{name}", floats, torch.int16).view(dtype)
    expected = floats.to(dtype)
    assert torch.equal(rounded.isnan(), expected.isnan())
    assert torch.equal(rounded[~rounded.isnan()], expected[~expected.isnan()])
    every = torch.arange(0, 65536, dtype=torch.int32).to(torch.int16)
    widened = call(library, f"{name}_to_float", every, torch.float32)
    assert torch.equal(widened.nan_to_num(7.0), every.view(dtype).float().nan_to_num(7.0))


def test_a_kernel_gets_only_the_sections_it_uses():
    text = sections_for("y = simd_tanh(x);")
    assert "simd_tanh" in text and "simd_exp_near" in text and "float_of_bits" in text
    assert "simd_log" not in text and "stream_row" not in text
    assert text.index("float_of_bits") < text.index("simd_exp_near") < text.index("simd_tanh")
    assert sections_for("y = x + 1;") == ""
