"""The float64 oracle: what it raises, what it perturbs, what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autokernel.errors import NotComputable
from autokernel.judge.oracle import Oracle, one_thread
from autokernel.records import Task, TensorSpec


def a_task(function, *inputs, **changes):
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return Task(
        id="01-test",
        title="test",
        fingerprint="f",
        shape_key="s",
        inputs=tuple(a_spec(f"x{i}", value) for i, value in enumerate(inputs)),
        outputs=tuple(a_spec(f"out{i}", value) for i, value in enumerate(outputs)),
        **changes,
    )


def a_spec(name, value):
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(name=name, dtype=dtype, shape=tuple(value.shape), stride=tuple(value.stride()))


def expect(function, *inputs):
    return Oracle(a_task(function, *inputs), function, inputs).expect(inputs)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_casts_inside_the_reference_are_raised_to_float64():
    def through_bfloat16(x):
        return (x.to(torch.bfloat16) * 3).to(torch.float32) + 1

    x = torch.randn(100)
    (found,) = expect(through_bfloat16, x)
    assert torch.equal(found.reference, x.double() * 3 + 1)
    assert not torch.equal(found.eager.double(), found.reference)


def test_dtype_arguments_are_raised_to_float64():
    def reference(x):
        return torch.softmax(x, -1, dtype=torch.float32).to(torch.bfloat16)

    x = torch.randn(8, 32).bfloat16()
    (found,) = expect(reference, x)
    assert torch.allclose(found.reference, torch.softmax(x.double(), -1), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "reference",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ],
)
def test_fused_attention_is_computed_in_float64(reference):
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    (found,) = expect(reference, q, k, v)
    wide = reference(q.double(), k.double(), v.double())
    assert torch.allclose(found.reference, wide, rtol=1e-12, atol=1e-14)


def test_discrete_outputs_must_equal_eager():
    values, chosen = expect(lambda x: (x.amax(-1), x.argmax(-1)), torch.randn(6, 9))
    assert chosen.exact and torch.equal(chosen.reference, chosen.eager)
    assert not values.exact


def test_pure_data_movement_is_exact_in_every_output():
    x, y = torch.randn(4, 6), torch.randn(4, 2)
    (found,) = expect(lambda x, y: torch.cat((x[:, ::2], y), -1).t().contiguous(), x, y)
    assert found.exact and found.spread is None


def test_a_constant_added_is_no_longer_data_movement():
    (found,) = expect(lambda x: x.t() + 1, torch.randn(4, 6))
    assert not found.exact


def test_the_spread_follows_the_dtype_each_value_has_in_the_task():
    x = torch.randn(64, 64)
    (single,) = expect(lambda x: x * 1.5 + 2, x)
    (half,) = expect(lambda x: x * 1.5 + 2, x.bfloat16())
    ratio = float(half.spread.mean() / single.spread.mean())
    assert 2**14 < ratio < 2**18  # bfloat16 has 16 bits less


def test_the_spread_of_a_cancelling_difference_is_that_of_its_operands():
    x = torch.full((100,), 1.0)
    (found,) = expect(lambda x: (x * 1.1) - (x * 1.1001), x)
    assert float(found.spread.max()) > 1e-8  # 1e-4 · u would be 6e-12


def test_a_masked_row_keeps_a_finite_spread():
    mask = torch.full((8, 8), float("-inf")).triu(1)
    (found,) = expect(lambda x, m: torch.softmax(x + m, -1), torch.randn(8, 8), mask)
    assert found.spread.isfinite().all()
    assert float(found.spread[7].min()) > 0


def test_the_noise_of_one_seed_repeats():
    x = torch.randn(16, 16)
    task = a_task(lambda x: torch.softmax(x, -1), x)
    oracle = Oracle(task, lambda x: torch.softmax(x, -1), [x])
    first, again, other = oracle.expect([x], 5), oracle.expect([x], 5), oracle.expect([x], 6)
    assert torch.equal(first[0].spread, again[0].spread)
    assert not torch.equal(first[0].spread, other[0].spread)


@pytest.mark.parametrize(
    ("reference", "inputs", "words"),
    [
        (lambda x: F.dropout(x, 0.5, True), (torch.randn(4),), "random"),
        (lambda x: x.view(torch.int32) + 1, (torch.randn(4),), "bits"),
        (lambda x: torch.fft.fft(x).real, (torch.randn(8),), "complex"),
    ],
)
def test_what_has_no_wider_form_is_not_computable(reference, inputs, words):
    with pytest.raises(NotComputable, match=words):
        Oracle(a_task(lambda x: x, *inputs), reference, inputs)


def test_a_task_that_mutates_or_draws_is_not_computable():
    x = torch.randn(4)
    for change in ({"mutates": ("x0",)}, {"rng": True}):
        with pytest.raises(NotComputable):
            Oracle(a_task(lambda x: x, x, **change), lambda x: x, [x])


def test_a_graph_that_disagrees_with_eager_is_not_trusted():
    x = torch.randn(100)
    oracle = Oracle(a_task(lambda x: x * 2, x), lambda x: x * 2, [x])
    oracle.reference = lambda x: x * 2.01
    with pytest.raises(NotComputable, match="disagree"):
        oracle.expect([x])


def test_one_step_lower_precision_is_computed_in_it():
    x = torch.randn(50)
    oracle = Oracle(a_task(lambda x: x.exp() * 3, x), lambda x: x.exp() * 3, [x])
    (low,) = oracle.one_step_lower([x])
    assert torch.equal(low, (x.bfloat16().exp() * 3).float())


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before
