"""Inputs drawn from a description: layout exactly, values in distribution, variants as they are called."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.errors import NotComputable
from autokernel.records import Role, Statistics, Task, TensorSpec
from autokernel.task.inputs import EDGES, STABILITY, VARIANTS, draw
from autokernel.task.layout import dense, lay_out, restride, storage_elements


def a_task(*specs):
    return Task(id="01-t", title="t", fingerprint="f", shape_key="s", inputs=specs, outputs=())


def spec(shape=(8, 16), dtype="float32", name="x", **changes):
    stride = changes.pop("stride", dense(shape))
    return TensorSpec(name=name, dtype=dtype, shape=shape, stride=stride, **changes)


def one(given_spec, seed=1, variant="model"):
    return draw(a_task(given_spec), seed, variant)[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=0, max_size=4),
    st.sampled_from(["float32", "bfloat16", "float16", "float64", "int64", "int32", "bool"]),
    st.sampled_from(VARIANTS),
    st.integers(0, 9),
    st.data(),
)
def test_layout_and_dtype_are_exactly_those_described(shape, dtype, variant, offset, data):
    order = data.draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for axis in reversed(order):
        stride[axis] = 0 if data.draw(st.integers(0, 5)) == 0 else step
        step *= max(shape[axis], 1) if stride[axis] else 1
    described = spec(tuple(shape), dtype, stride=tuple(stride), offset=offset)
    found = one(described, variant=variant)
    assert found.dtype is getattr(torch, dtype) and tuple(found.shape) == tuple(shape)
    if variant not in EDGES:
        assert found.stride() == tuple(stride) and found.storage_offset() == offset


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    task = a_task(spec(), spec(name="y"))
    first, again, other = draw(task, 3), draw(task, 3), draw(task, 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_values_have_the_mean_and_the_spread_that_were_seen():
    found = one(spec((200, 200), statistics=Statistics(mean=5.0, std=0.5, minimum=-1.0)))
    assert float(found.mean()) == pytest.approx(5, abs=0.02) and float(found.std()) == pytest.approx(0.5, rel=0.05)


def test_weights_of_one_and_biases_of_zero_are_drawn_so_that_they_matter():
    ones = Statistics(mean=1.0, std=0.0, minimum=1.0, maximum=1.0)
    zeros = Statistics(mean=0.0, std=0.0, minimum=0.0, maximum=0.0)
    assert float(one(spec((400,), role=Role.parameter, statistics=ones)).std()) > 0.05
    assert float(one(spec((400,), role=Role.parameter, statistics=zeros)).std()) > 0.02


def test_a_variance_stays_positive_and_an_activation_after_relu_keeps_its_zeros():
    variance = one(spec((500,), role=Role.buffer, domain="positive", statistics=Statistics(mean=1.0, std=0.0)))
    assert float(variance.min()) > 0
    relu = one(spec((100, 100), statistics=Statistics(mean=0.4, std=0.6, minimum=0.0, fraction_zero=0.5)))
    assert float(relu.min()) == 0 and 0.4 < float((relu == 0).float().mean()) < 0.6


def test_an_index_stays_below_its_bound_and_keeps_the_ignored_marker():
    found = one(spec((5000,), "int64", role=Role.index, domain="index", high=7))
    assert int(found.min()) == 0 and int(found.max()) == 6
    marked = one(spec((500,), "int64", role=Role.index, domain="index", high=7, statistics=Statistics(minimum=-100)))
    assert set(marked.unique().tolist()) == {-100, *range(7)}


def test_a_causal_mask_keeps_a_visible_key_in_every_row_and_is_not_always_the_same():
    described = spec((1, 1, 12, 20), role=Role.mask, domain="causal_mask", statistics=Statistics(fraction_inf=0.4))
    found = [one(described, seed) for seed in range(12)]
    assert all(set(mask.unique().tolist()) <= {0.0, -math.inf} for mask in found)
    assert all(bool((mask == 0).any(-1).all()) for mask in found)
    plain = torch.zeros(12, 20).masked_fill(~torch.ones(12, 20, dtype=torch.bool).tril(8), -math.inf)
    same = [torch.equal(mask[0, 0], plain) for mask in found]
    assert any(same) and not all(same)


def test_a_mask_blocked_by_the_smallest_number_is_drawn_with_it():
    low = torch.finfo(torch.float32).min
    described = spec((8, 8), role=Role.mask, domain="causal_mask", statistics=Statistics(minimum=low, maximum=0.0))
    assert set(one(described).unique().tolist()) == {0.0, low}


def test_complex_inputs_are_refused_and_unknown_variants_too():
    with pytest.raises(NotComputable):
        one(spec(dtype="complex64"))
    with pytest.raises(ValueError, match="unknown variant"):
        one(spec(), variant="odd")


def test_stability_variants_change_activations_only():
    task = a_task(spec((32, 64)), spec((64,), name="w", role=Role.parameter))
    plain = draw(task, 5)
    for variant in STABILITY:
        changed = draw(task, 5, variant)
        assert torch.equal(changed[1], plain[1])
        assert not torch.equal(changed[0], plain[0])


def test_the_variants_are_what_they_are_called():
    found = {variant: one(spec((32, 64)), variant=variant) for variant in STABILITY}
    tiny = torch.finfo(torch.float32).tiny
    assert float(found["large"].abs().max()) > 1000
    assert float(found["tiny"].abs().max()) < 1e-3
    assert float(found["mixed_scale"].abs().max() / found["mixed_scale"].abs().median()) > 50
    assert float(found["positive"].min()) >= 0
    assert bool((found["zeros"] == 0).all()) and 0 < int(found["zeros"].signbit().sum()) < 32 * 64
    assert 0 < float(found["subnormal"].abs().max()) < tiny
    assert bool((found["structured"][0] == found["structured"][0, 0]).all())
    for name, special in (("nan", torch.isnan), ("inf", torch.isinf)):
        rows = special(found[name]).any(-1)
        assert 0 < int(rows.sum()) < 32


def test_subnormals_exist_in_half_precision_too():
    for dtype in (torch.float16, torch.bfloat16):
        found = one(spec((16, 16), str(dtype).removeprefix("torch.")), variant="subnormal").double().abs()
        assert 0 < float(found.max()) < torch.finfo(dtype).tiny


def test_edge_variants_are_what_they_are_called():
    plain = spec((6, 8))
    assert not one(plain, variant="noncontiguous").is_contiguous()
    assert one(spec((8,)), variant="noncontiguous").stride() == (2,)
    assert one(plain, variant="offset").storage_offset() == 64
    assert one(plain, variant="misaligned").storage_offset() == 1
    expanded = one(plain, variant="expanded")
    assert expanded.stride() == (0, 1) and torch.equal(expanded[0], expanded[5])


def test_what_lies_between_the_elements_is_nan():
    found = one(spec((4, 4)), variant="noncontiguous")
    whole = torch.as_strided(found, (storage_elements(found.shape, found.stride(), 0),), (1,))
    assert bool(whole.isnan().any()) and not bool(found.isnan().any())


def test_overlapping_windows_are_filled():
    values = torch.arange(12.0).reshape(4, 3)
    found = lay_out(values, (4, 3), (1, 1), 0)
    assert found.stride() == (1, 1) and bool(found.isfinite().all())


@pytest.mark.parametrize(
    ("shape", "stride", "new_shape", "wanted"),
    [
        ((4, 8), (8, 1), (5, 9), (9, 1)),
        ((2, 4, 8), (32, 1, 4), (2, 5, 8), (40, 1, 5)),  # a transposed view stays one
        ((4, 8), (16, 1), (4, 10), (20, 1)),  # half of a wider row
        ((4, 7), (10, 1), (4, 9), (12, 1)),  # a padded row
        ((4, 8), (0, 1), (6, 8), (0, 1)),  # an expanded one
        ((8, 1, 4), (4, 4, 1), (8, 1, 6), (6, 6, 1)),
    ],
)
def test_strides_follow_when_extents_change(shape, stride, new_shape, wanted):
    assert restride(shape, stride, new_shape) == wanted
