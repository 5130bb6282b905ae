"""Generated kernels, compiled and run, against eager and float64."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autokernel.generate import coverage, generate, schedules


def test_the_first_guess_computes_what_eager_computes(regions, run, agree, region_name):
    region = regions(region_name)
    schedule = schedules(region.task, region.module, threads=2)[0]
    found = run(generate(region.task, region.module, schedule), region.inputs, region.eager)
    agree(found, region.eager, region.exact)


@pytest.mark.parametrize(
    "name",
    ["residual_norm", "masked_softmax", "layer_norm", "rotary", "transposed", "gelu_bias", "cross_entropy", "cat_rows"],
)
def test_any_schedule_computes_the_same(regions, run, agree, name):
    region = regions(name)
    space = schedules(region.task, region.module, threads=2)
    for schedule in random.Random(name).sample(space, min(4, len(space))):
        found = run(generate(region.task, region.module, schedule), region.inputs, region.eager)
        agree(found, region.eager, region.exact)


@pytest.mark.parametrize("name", ["rms_norm", "masked_softmax", "layer_norm", "swiglu", "gelu_bias", "log_softmax"])
def test_nan_and_infinity_come_out_where_eager_has_them(regions, run, agree, name):
    region = regions(name)
    values = [value.clone() for value in region.inputs]
    rows = values[0].view(-1, values[0].shape[-1])
    rows[0, 3], rows[1, 5], rows[2, 7] = float("nan"), float("inf"), float("-inf")
    rows[3] = float("-inf")
    rows[4] *= 1e15
    rows[5] *= 1e-42
    eager = region.function(*values)
    exact = region.function(*(value.double() for value in values))
    for schedule in schedules(region.task, region.module, threads=2)[:3]:
        agree(run(generate(region.task, region.module, schedule), values, eager), eager, exact)


def test_amax_and_maximum_keep_nan(make, run, agree):
    x = torch.randn(6, 67)
    x[1, 66] = x[2, 0] = float("nan")
    region = make(lambda x: (x.amax(-1), torch.maximum(x, -x), x.amin(-1), F.relu(x), x.clamp(-1, 1)), [x])
    for schedule in schedules(region.task, region.module)[:4]:
        found = run(generate(region.task, region.module, schedule), region.inputs, region.eager)
        agree(found, region.eager, region.exact)


def test_inputs_laid_out_otherwise_than_the_tasks_give_the_same_values(regions, run, agree):
    region = regions("residual_norm")
    x, y, weight = region.inputs
    wide = torch.randn(1, 24, 200)
    wide[..., 13:141] = x
    moved = y.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.randn(256)
    spread[::2] = weight
    inputs = [wide[..., 13:141], moved, spread[::2]]
    assert [value.is_contiguous() for value in inputs] == [False, False, False]
    source = generate(region.task, region.module, schedules(region.task, region.module)[0])
    agree(run(source, inputs, region.eager), region.eager, region.exact)


def test_an_expanded_input_may_come_unexpanded(make, run, agree):
    row = torch.randn(1, 40)
    region = make(lambda x, y: x * 2 + y, [row.expand(6, 40), torch.randn(6, 40)])
    source = generate(region.task, region.module, schedules(region.task, region.module)[0])
    agree(run(source, region.inputs, region.eager), region.eager, region.exact)
    other = [torch.randn(6, 40), torch.randn(6, 40)]
    assert torch.equal(run(source, other, region.eager)[0], other[0] * 2 + other[1])


def test_an_index_outside_its_tensor_is_an_error_and_not_a_read(regions, run):
    region = regions("cross_entropy")
    logits, targets = region.inputs
    source = generate(region.task, region.module, schedules(region.task, region.module, threads=2)[0])
    for wrong in (96, -1, 2**40):
        bad = targets.clone()
        bad[7] = wrong
        with pytest.raises(IndexError):
            run(source, [logits, bad], region.eager)


def test_three_runs_are_bitwise_equal_whatever_the_threads(regions, run):
    region = regions("two_level")
    source = generate(region.task, region.module, schedules(region.task, region.module, threads=2)[0])
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(run(source, region.inputs, region.eager)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])


SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 64, 65])


# no shrinking: each example is a compilation
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rows=SIZES, columns=SIZES, data=st.data())
def test_any_shape_broadcast_and_stride(make, run, agree, rows, columns, data):
    transposed = data.draw(st.booleans(), "transposed")
    x = torch.randn(columns, rows).t() if transposed else torch.randn(rows, columns)
    other = torch.randn(*(data.draw(st.sampled_from([n, 1])) for n in (rows, columns)))

    def function(x, y):
        return (x * y + x, y - x) if transposed else (F.softmax(x * y, -1) + y, (x + y).sum(-1))

    region = make(function, [x, other])
    space = schedules(region.task, region.module, threads=2)
    schedule = data.draw(st.sampled_from(space))
    found = run(generate(region.task, region.module, schedule), region.inputs, region.eager)
    agree(found, region.eager, region.exact)


def test_every_region_of_the_list_is_covered_as_the_right_kind(regions, region_name):
    rows = {"rms", "norm", "softmax", "entropy", "logsumexp", "spread", "level", "whole", "causal", "integers", "any"}
    pointwise = {"rotary", "batch_norm_relu", "rotary_repeated"}
    expected = "row" if any(word in region_name for word in rows) and region_name not in pointwise else "pointwise"
    assert coverage(regions(region_name).module).kind == ("row" if region_name == "normed_rotary" else expected)


@pytest.mark.parametrize(
    "function, inputs, word",
    [
        (lambda a, b: a @ b, [torch.randn(4, 4), torch.randn(4, 4)], "mm"),
        (lambda a: a.softmax(0), [torch.randn(4, 6)], "leading dim"),
        (lambda a: a.argmax(-1), [torch.randn(4, 6)], "argmax"),
        (lambda a: a * 2, [torch.randn(4, 6, dtype=torch.complex64)], "complex64"),
        (lambda a: a.cumsum(-1), [torch.randn(4, 6)], "cumsum"),
        (lambda a: torch.special.i0(a), [torch.randn(4)], "i0"),
    ],
)
def test_what_it_cannot_write_it_says_why(make, function, inputs, word):
    from autokernel.graph.lower import lower

    found = coverage(lower(function, inputs))
    assert found.kind is None and word in found.reason
