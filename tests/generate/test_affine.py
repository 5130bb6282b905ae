"""Index arithmetic, against what reshape really does."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.errors import NotGenerated
from autokernel.generate.affine import Affine, SplitNeeded, Var, flatten, reshape_index, unflatten


def evaluate(affine, values):
    return affine.constant + sum(c * values[v] for v, c in affine.terms)


@st.composite
def two_shapes(draw):
    """Two shapes with the same number of elements."""
    factors = draw(st.lists(st.sampled_from([2, 2, 3, 5]), min_size=1, max_size=5))

    def grouped():
        shape, part = [], 1
        for factor in factors:
            part *= factor
            if draw(st.booleans()):
                shape.append(part)
                part = 1
        shape.append(part)
        return tuple(shape)

    return grouped(), grouped()


@settings(max_examples=80, deadline=None)
@given(two_shapes())
def test_a_reshaped_index_reads_the_same_element(shapes):
    shape, to = shapes
    tensor = torch.arange(math.prod(shape))
    splits = {axis: (extent,) for axis, extent in enumerate(shape)}
    for _ in range(20):
        index = []
        for axis, factors in splits.items():
            chosen = tuple(Var(f"i{axis}_{k}", factor) for k, factor in enumerate(factors))
            index.append(flatten(tuple(map(Affine.var, chosen)), factors))
        try:
            found = reshape_index(tuple(index), shape, to, {})
            break
        except SplitNeeded as need:
            axis, place = (int(part) for part in need.var.name[1:].split("_"))
            factors = list(splits[axis])
            factors[place : place + 1] = [need.var.extent // need.factor, need.factor]
            splits[axis] = tuple(factors)
    else:
        pytest.fail("the splits do not come to an end")
    variables = sorted({v for part in index for v in part.variables})
    for counts in torch.cartesian_prod(*(torch.arange(v.extent) for v in variables)).view(-1, len(variables)).tolist():
        values = dict(zip(variables, counts, strict=True))
        here = tensor.view(shape)[tuple(evaluate(part, values) for part in index)]
        there = tensor.view(to)[tuple(evaluate(part, values) for part in found)]
        assert here == there


def test_a_slice_stays_linear_through_a_reshape():
    head, lane = Var("head", 8), Var("lane", 32)
    merged = flatten((Affine.var(head), Affine.var(lane) + 32), (8, 64))
    assert str(merged) == "64 * head + lane + 32"
    assert unflatten(merged, (8, 64), {}) == (Affine.var(head), Affine.var(lane) + 32)


def test_what_no_split_makes_linear_is_a_named_error():
    with pytest.raises(NotGenerated, match="no linear index"):
        Affine.var(Var("i", 35)).divide(4, {})


def test_bounds_let_a_segment_through_where_the_whole_range_would_not_fit():
    i = Var("i", 64)
    with pytest.raises(SplitNeeded):
        Affine.var(i).divide(32, {})
    assert Affine.var(i).divide(32, {i: (32, 64)}) == (Affine((), 1), Affine.var(i) + -32)
