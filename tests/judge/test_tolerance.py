"""The tolerance: honest kernels of any order of summation pass, mutants don't, and the sentence says where."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autokernel.judge import tolerance
from autokernel.judge.oracle import Expected, Oracle, one_thread
from autokernel.judge.tolerance import compare, figures, pooled_limit
from autokernel.records import Reason, Role, Task, TensorSpec
from autokernel.task.inputs import draw

# --- kernels that a person might write: sums in `lanes` lanes, one after the other -----------------------------------


def lane_sum(x: Tensor, lanes: int) -> Tensor:
    x = F.pad(x, (0, -x.shape[-1] % lanes))
    x = x.reshape(*x.shape[:-1], -1, lanes)
    total = torch.zeros_like(x[..., 0, :])
    for i in range(x.shape[-2]):
        total = total + x[..., i, :]
    while total.shape[-1] > 1:
        total = total[..., ::2] + total[..., 1::2]
    return total


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def my_rms_norm(lanes, eps=1e-5, scale=1.0, inner=torch.float32):
    def kernel(x, w):
        wide = x.to(inner)
        mean = lane_sum(wide * wide, lanes) / x.shape[-1]
        return (wide * torch.rsqrt(mean + eps) * scale * w.to(inner)).to(x.dtype)

    return kernel


def softmax(x):
    return torch.softmax(x, -1)


def my_softmax(lanes, how=""):
    def kernel(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        if how == "exp2":
            scaled = x * math.log2(math.e)
            e = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
        if how == "tail":
            e = torch.where(e < 1e-2, 0, e)
        total = lane_sum(e, lanes)
        if how == "bfloat16 sum":
            total = e.bfloat16().sum(-1, keepdim=True).float()
        out = e * (1 / total) if how == "reciprocal" else e / total
        return F.pad(out[:, :-1], (0, 1)) if how == "last" else out

    return kernel


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def my_layer_norm(lanes, how=""):
    def kernel(x, w, b):
        mean = lane_sum(x, lanes) / x.shape[-1]
        centred = x if how == "mean not subtracted" else x - mean
        variance = lane_sum(centred * centred, lanes) / x.shape[-1]
        if how == "one pass":
            variance = lane_sum(x * x, lanes) / x.shape[-1] - mean * mean
        scale = torch.rsqrt(variance + (1e-4 if how == "eps" else 1e-5)) * (1.05 if how == "5 %" else 1)
        return centred * scale * w + b

    return kernel


def product(a, b):
    return a @ b.t()


def my_product(how):
    def kernel(a, b):
        if how == "tf32":
            a, b = ((t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in (a, b))
            return a @ b.t()
        if how == "bfloat16":
            return (a.bfloat16() @ b.bfloat16().t()).float()
        total = torch.zeros(a.shape[0], b.shape[0])
        for k in range(a.shape[1]):
            total = total + a[:, k : k + 1] * b[:, k]
        return total

    return kernel


def swiglu(g, u):
    return F.silu(g) * u


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def my_cross_entropy(shift):
    def kernel(x, t):
        most = x.amax(-1, keepdim=True)
        picked = x.gather(1, (t[:, None] + shift) % x.shape[1])
        return (torch.log(lane_sum(torch.exp(x - most), 8)) + most - picked).mean()

    return kernel


P, A = Role.parameter, Role.activation
TASKS = {
    rms_norm: [((24, 512), A), ((512,), P)],
    softmax: [((24, 384), A)],
    layer_norm: [((24, 512), A), ((512,), P), ((512,), P)],
    product: [((24, 256), A), ((48, 256), P)],
    swiglu: [((24, 384), A), ((24, 384), A)],
    cross_entropy: [((32, 500), A), ((32,), Role.index)],
}
HONEST = [
    (rms_norm, my_rms_norm(1)),
    (rms_norm, my_rms_norm(8)),
    (rms_norm, my_rms_norm(64)),
    (softmax, my_softmax(1)),
    (softmax, my_softmax(16)),
    (softmax, my_softmax(8, "exp2")),
    (softmax, my_softmax(8, "reciprocal")),
    (layer_norm, my_layer_norm(1)),
    (layer_norm, my_layer_norm(16)),
    (layer_norm, my_layer_norm(16, "one pass")),
    (product, my_product("one after the other")),
    (swiglu, lambda g, u: g / (1 + torch.exp(-g)) * u),
    (swiglu, lambda g, u: g * u / (1 + torch.exp2(-g * math.log2(math.e)))),
    (cross_entropy, my_cross_entropy(0)),
]
MUTANTS = [
    (rms_norm, my_rms_norm(8, eps=1e-4)),
    (rms_norm, my_rms_norm(8, scale=1.05)),
    (rms_norm, my_rms_norm(8, scale=1.0001)),
    (rms_norm, my_rms_norm(8, inner=torch.bfloat16)),
    (softmax, my_softmax(8, "tail")),
    (softmax, my_softmax(8, "last")),
    (softmax, my_softmax(8, "bfloat16 sum")),
    (layer_norm, my_layer_norm(8, "mean not subtracted")),
    (layer_norm, my_layer_norm(8, "eps")),
    (layer_norm, my_layer_norm(8, "5 %")),
    (product, my_product("tf32")),
    (product, my_product("bfloat16")),
    (swiglu, lambda g, u: (F.silu(g.bfloat16()) * u.bfloat16()).float()),
    (swiglu, lambda g, u: F.gelu(g) * u),
    (cross_entropy, my_cross_entropy(1)),
]
DRAWS = 12


def a_task(function) -> Task:
    inputs = tuple(
        TensorSpec(
            name=f"x{i}",
            dtype="int64" if role is Role.index else "float32",
            shape=shape,
            stride=tuple(torch.empty(shape).stride()),
            role=role,
            domain="index" if role is Role.index else "real",
            high=500 if role is Role.index else None,
        )
        for i, (shape, role) in enumerate(TASKS[function])
    )
    bare = Task(id="01-t", title="t", fingerprint="f", shape_key="s", inputs=inputs, outputs=())
    out = function(*draw(bare, 0))
    spec = TensorSpec(name="out", dtype="float32", shape=tuple(out.shape), stride=tuple(out.stride()))
    return bare.model_copy(update={"outputs": (spec,)})


@pytest.fixture(scope="module", autouse=True)
def single_threaded():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def drawn():
    """For each function: DRAWS sets of inputs with what is expected of them."""
    torch.manual_seed(0)
    made = {}
    for function in TASKS:
        task = a_task(function)
        oracle = Oracle(task, function, draw(task, 0))
        sets = [draw(task, seed) for seed in range(DRAWS)]
        made[function] = [(inputs, oracle.expect(inputs, k)[0]) for k, inputs in enumerate(sets)]
    return made


def refused(sets, kernel) -> int:
    return sum(compare("out", kernel(*inputs), expected).reason is not None for inputs, expected in sets)


def test_honest_kernels_of_any_order_of_summation_pass(drawn):
    assert {
        number: refused(drawn[function], kernel) for number, (function, kernel) in enumerate(HONEST)
    } == dict.fromkeys(range(len(HONEST)), 0)


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_mutants_are_refused_on_every_draw(drawn, number):
    function, kernel = MUTANTS[number]
    assert refused(drawn[function], kernel) == DRAWS


def test_honest_kernels_have_room_and_mutants_have_none(drawn):
    """The limits are not met by luck: the worst honest element is well inside, the best mutant well outside."""

    def worst(pairs, pick):
        return pick(
            pick(compare("out", kernel(*inputs), expected).worst for inputs, expected in drawn[function])
            for function, kernel in pairs
        )

    assert worst(HONEST, max) < 0.9
    assert worst(MUTANTS, min) > 1.5


# --- the rules one by one ---------------------------------------------------------------------------------------------


def expected(reference, eager=None, spread=None) -> Expected:
    reference = torch.as_tensor(reference, dtype=torch.float64)
    eager = reference.float() if eager is None else torch.as_tensor(eager, dtype=torch.float32)
    return Expected(eager, reference, spread, False)


def test_the_explanation_names_the_worst_element_and_counts_those_over():
    reference = torch.ones(3, 4)
    got = reference.clone()
    got[1, 2], got[2, 0] = 1.5, 1.25
    found = compare("out", got, expected(reference))
    assert found.reason is Reason.wrong_values
    assert "out[1, 2]" in found.explanation and "got 1.5" in found.explanation and "expected 1 " in found.explanation
    assert "2 of 12 elements are over" in found.explanation and "[1, 2]" in found.explanation


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_must_be_exactly_where_eager_has_them(value):
    eager = torch.tensor([1.0, value, 2.0])
    reference = eager.double()
    right = Expected(eager, reference, torch.zeros(3, dtype=torch.float64), False)
    assert compare("out", eager.clone(), right).reason is None
    assert compare("out", torch.tensor([1.0, 5.0, 2.0]), right).reason is Reason.wrong_special_values
    assert compare("out", torch.tensor([value, value, 2.0]), right).reason is Reason.wrong_special_values


def test_infinities_have_signs():
    eager = torch.tensor([math.inf])
    found = compare("out", -eager, Expected(eager, eager.double(), None, False))
    assert found.reason is Reason.wrong_special_values


def test_a_kernel_may_be_finite_where_only_eager_overflows():
    one = Expected(torch.tensor([math.inf]), torch.tensor([3.0], dtype=torch.float64), None, False)
    assert compare("out", torch.tensor([3.0]), one).reason is None
    assert compare("out", torch.tensor([4.0]), one).reason is Reason.wrong_values
    assert compare("out", torch.tensor([math.inf]), one).reason is None


def test_exact_outputs_have_no_tolerance():
    eager = torch.tensor([1, 2, 3])
    assert compare("out", eager.clone(), Expected(eager, eager, None, True)).reason is None
    found = compare("out", torch.tensor([1, 2, 4]), Expected(eager, eager, None, True))
    assert found.reason is Reason.wrong_values and "out[2]: got 4, expected exactly 3" in found.explanation


def test_moved_values_keep_their_bits_but_nan_is_nan():
    eager = torch.tensor([math.nan, 0.0, -0.0])
    one = Expected(eager, eager, None, True)
    assert compare("out", eager.clone(), one).reason is None
    assert compare("out", torch.tensor([math.nan, -0.0, -0.0]), one).reason is Reason.wrong_values


def test_being_slightly_off_everywhere_is_seen_by_the_pooled_error():
    reference = torch.rand(10_000, dtype=torch.float64) + 1
    spread = torch.full_like(reference, 1e-6)
    one = Expected(reference.float(), reference, spread, False)
    allowed = 8e-6
    found = compare("out", (reference + 0.8 * allowed).float(), one)
    assert found.worst < 1 and found.reason is Reason.wrong_values and "together" in found.explanation
    assert compare("out", (reference + 0.1 * allowed).float(), one).reason is None


def test_the_pooled_limit_widens_for_few_elements():
    assert pooled_limit(1) == 1
    assert pooled_limit(10**6) == pytest.approx(0.501)


def test_one_ulp_is_allowed_and_two_are_not():
    reference = torch.tensor([1.5, 3.0, -100.0])
    one = expected(reference, spread=torch.zeros(3, dtype=torch.float64))
    up = torch.nextafter(reference, torch.tensor(math.inf))
    assert compare("out", up, one).worst <= 1
    assert compare("out", torch.nextafter(up, torch.tensor(math.inf)), one).reason is Reason.wrong_values


def test_results_below_the_smallest_normal_number_may_be_flushed():
    reference = torch.tensor([1e-39, 1.0])
    assert compare("out", torch.tensor([0.0, 1.0]), expected(reference)).reason is None
    assert compare("out", torch.tensor([0.0, 1.0]), expected(torch.tensor([1e-37, 1.0]))).reason is Reason.wrong_values


def test_an_empty_output_passes():
    assert compare("out", torch.empty(0, 4), expected(torch.empty(0, 4))).reason is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 400),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
    st.floats(-30, 30),
)
def test_eager_itself_always_passes(count, dtype, seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    scale = 2.0 ** (exponent if dtype is not torch.float16 else exponent / 4)
    reference = torch.randn(count, generator=generator, dtype=torch.float64) * scale
    eager = reference.to(dtype)
    assert compare("out", eager, Expected(eager, reference, torch.zeros_like(reference), False)).reason is None


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.integers(0, 2**31), st.data())
def test_one_element_that_is_off_by_a_thousandth_is_found_and_named(count, seed, data):
    reference = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3
    where = data.draw(st.integers(0, count - 1))
    got = reference.float()
    got[where] *= 1.001
    found = compare("out", got, expected(reference, spread=torch.full((count,), 1e-8, dtype=torch.float64)))
    assert found.reason is Reason.wrong_values and f"out[{where}]" in found.explanation


def test_figures_are_the_largest_of_all_comparisons():
    one = compare("out", torch.tensor([1.0, 2.5]), expected(torch.tensor([1.0, 2.0])))
    other = compare("out", torch.tensor([1.0]), expected(torch.tensor([1.0])))
    assert figures([]) is None
    found = figures([other, one])
    assert found.max == pytest.approx(0.5) and found.tolerance == one.worst


def test_places_for_each_bin_change_nothing_but_speed(monkeypatch):
    """A GPU has many places for each bin: the same results, tried here on the CPU."""
    bins = torch.randint(0, 40, (5000,), generator=torch.Generator().manual_seed(0))
    values = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one = {how: tolerance._of_bins(bins, values, how) for how in ("amax", "sum")}
    monkeypatch.setattr(tolerance, "_lanes", lambda bins: 256)
    many = {how: tolerance._of_bins(bins, values, how) for how in ("amax", "sum")}
    assert torch.equal(one["amax"], many["amax"])
    assert torch.allclose(one["sum"], many["sum"], rtol=1e-12)
    assert one["amax"][3] == values[bins == 3].max()
