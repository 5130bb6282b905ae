"""Generated Triton kernels, run in Triton's interpreter, against eager and float64."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from autokernel.generate import TritonSchedule, coverage, generate, schedules
from autokernel.graph.lower import lower

# one of each structure; blocks small enough that rows of a test are longer
STRUCTURES = [
    TritonSchedule(rows=4, divide="reciprocal", exp="fast", evict="hints"),
    TritonSchedule(structure="split", rows=8, persistent=1, stages=2, block=64, order="tiles"),
    TritonSchedule(structure="loop", rows=8, block=32, stages=2, exp="folded", divide="fast", order="loads"),
    TritonSchedule(structure="online", rows=2, block=32, evict="hints"),
]
HALF = {"rms_norm", "residual_norm", "rotary", "masked_softmax", "swiglu", "layer_norm", "gelu_bias", "log_softmax"}


def test_the_first_guess_computes_what_eager_computes(regions, interpret, agree, region_name):
    region = regions(region_name)
    schedule = schedules(region.task, region.module, "triton")[0]
    found = interpret(generate(region.task, region.module, schedule), region.inputs, region.eager)
    agree(found, region.eager, region.exact)


@pytest.mark.parametrize("schedule", STRUCTURES, ids=str)
def test_every_structure_computes_the_same(regions, interpret, agree, region_name, schedule):
    if region_name == "long_cross_entropy":
        schedule = dataclasses.replace(schedule, block=2048, rows=min(schedule.rows, 2))
    region = regions(region_name)
    found = interpret(generate(region.task, region.module, schedule), region.inputs, region.eager)
    agree(found, region.eager, region.exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted(HALF))
def test_half_precisions_are_computed_in_float32_and_rounded_once(regions, make, interpret, agree, name, dtype):
    whole = regions(name)
    inputs = [value.to(dtype) if value.is_floating_point() else value for value in whole.inputs]
    region = make(lambda *values: whole.function(*values), inputs, name)
    for schedule in (schedules(region.task, region.module, "triton")[1], STRUCTURES[2]):
        found = interpret(generate(region.task, region.module, schedule), region.inputs, region.eager)
        agree(found, region.eager, region.exact)


@pytest.mark.parametrize("schedule", STRUCTURES, ids=lambda schedule: schedule.structure)
@pytest.mark.parametrize("name", ["rms_norm", "masked_softmax", "layer_norm", "swiglu", "gelu_bias", "log_softmax"])
def test_nan_and_infinity_come_out_where_eager_has_them(regions, interpret, agree, name, schedule):
    region = regions(name)
    values = [value.clone() for value in region.inputs]
    rows = values[0].view(-1, values[0].shape[-1])
    rows[0, 3], rows[1, 5], rows[2, 7] = float("nan"), float("inf"), float("-inf")
    rows[3] = float("-inf")
    rows[4] *= 1e15
    rows[5] *= 1e-42
    rows[6, :64] = float("-inf")  # whole blocks, before there is a finite value
    eager = region.function(*values)
    exact = region.function(*(value.double() for value in values))
    agree(interpret(generate(region.task, region.module, schedule), values, eager), eager, exact)


@pytest.mark.parametrize("name", ["logsumexp", "cross_entropy", "long_cross_entropy"])
def test_a_row_without_a_finite_value_is_eagers_online_too(regions, interpret, agree, name):
    region = regions(name)
    values = [value.clone() for value in region.inputs]
    values[0][0], values[0][1, 2] = float("-inf"), float("inf")
    eager, exact = region.function(*values), region.function(values[0].double(), *values[1:])
    for rows in (1, 2):
        schedule = TritonSchedule(structure="online", block=32 if name != "long_cross_entropy" else 2048, rows=rows)
        agree(interpret(generate(region.task, region.module, schedule), values, eager), eager, exact)


@pytest.mark.parametrize("plain", [False, True])
def test_amax_and_maximum_keep_nan(make, interpret, agree, plain):
    x = torch.randn(3, 37)
    x[1, 36] = x[2, 0] = float("nan")
    region = make(lambda x: (x.amax(-1), torch.maximum(x, -x), x.amin(-1), F.relu(x), x.clamp(-1, 1)), [x])
    for schedule in (TritonSchedule(), TritonSchedule(structure="loop", block=16, rows=2)):
        found = interpret(generate(region.task, region.module, schedule), region.inputs, region.eager, plain)
        agree(found, region.eager, region.exact)


def test_inputs_laid_out_otherwise_than_the_tasks_give_the_same_values(regions, interpret, agree):
    region = regions("residual_norm")
    x, y, weight = region.inputs
    wide = torch.randn(1, 24, 200)
    wide[..., 13:141] = x
    moved = y.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.randn(256)
    spread[::2] = weight
    inputs = [wide[..., 13:141], moved, spread[::2]]
    source = generate(region.task, region.module, TritonSchedule(rows=4))
    agree(interpret(source, inputs, region.eager), region.eager, region.exact)


def test_an_index_outside_its_tensor_reads_the_nearest_inside(regions, interpret):
    region = regions("cross_entropy")
    logits, targets = region.inputs
    source = generate(region.task, region.module, TritonSchedule(rows=4))
    assert "taken for the nearest one inside" in source
    for wrong, near in ((96, 95), (-1, 0), (2**40, 95)):
        bad, good = targets.clone(), targets.clone()
        bad[7], good[7] = wrong, near
        (found,) = interpret(source, [logits, bad], region.eager)
        assert torch.allclose(found, F.cross_entropy(logits, good), rtol=1e-6)


def test_a_permuted_tensor_is_read_and_written_in_tiles_of_any_order(make, interpret, agree):
    region = make(lambda x: (x.permute(2, 0, 1) * 2).contiguous(), [torch.randn(5, 12, 7)])
    for order in ("stores", "loads", "tiles"):
        for rows, block, persistent in ((1, 64, 0), (4, 4, 0), (8, 8, 2)):
            schedule = TritonSchedule(order=order, rows=rows, block=block, persistent=persistent)
            found = interpret(generate(region.task, region.module, schedule), region.inputs, region.eager)
            agree(found, region.eager, region.exact)


def test_pieces_of_unequal_length_are_put_together(make, interpret, agree):
    a, b, c = torch.randn(6, 40), torch.randn(6, 3), torch.randn(6, 1)
    region = make(lambda a, b, c: torch.cat((a, b * 2, c), -1), [a, b, c])
    norm = make(lambda a, b, c: torch.cat((a, b, c), -1).softmax(-1), [a, b, c])
    for schedule in (*STRUCTURES, TritonSchedule(block=16)):
        for made in (region, norm):
            found = interpret(generate(made.task, made.module, schedule), made.inputs, made.eager)
            agree(found, made.eager, made.exact)


def test_uint8_wraps_around_and_integers_may_overflow(make, interpret, agree):
    def function(a, b, wide, x):
        byte = a + b
        return byte, byte > 100, a * b - 7, ~a, -b, (a * 3).sum(-1), x.to(torch.uint8), wide * wide + 1

    a, b = (torch.randint(0, 256, (5, 40), dtype=torch.uint8) for _ in range(2))
    wide, x = torch.randint(-(2**31), 2**31, (5, 40), dtype=torch.int32), torch.rand(5, 40) * 255
    region = make(function, [a, b, wide, x])
    for schedule in STRUCTURES:
        source = generate(region.task, region.module, schedule)
        agree(interpret(source, region.inputs, region.eager), region.eager, region.exact)


def test_a_clamp_with_bounds_that_are_tensors_keeps_nan_from_each(make, interpret, agree):
    x, low, high = torch.randn(5, 40), -torch.rand(40), torch.rand(5, 40)
    x[0, 3] = low[7] = high[2, 9] = float("nan")

    def function(x, low, high):
        return x.clamp(low, high), torch.clamp_min(x, low), torch.clamp_max(x, high), x.clamp(-0.5, 0.5)

    region = make(function, [x, low, high])
    source = generate(region.task, region.module, TritonSchedule(rows=2, block=16))
    agree(interpret(source, region.inputs, region.eager), region.eager, region.exact)


def test_two_outputs_of_one_sum_and_products_and_minima_of_rows(make, interpret, agree):
    def function(x, y):
        total = torch.exp(x) + y
        return F.layer_norm(total, (96,), eps=1e-5), F.layer_norm(total, (96,), eps=0.5), y.prod(-1), total.amin(-1)

    region = make(function, [torch.randn(6, 96), torch.rand(6, 96) + 0.5])
    for schedule in STRUCTURES:
        source = generate(region.task, region.module, schedule)
        agree(interpret(source, region.inputs, region.eager), region.eager, region.exact)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 129), (65, 5)])
def test_any_shape_and_stride(make, interpret, agree, shape):
    x, y = torch.randn(shape[1], shape[0]).t(), torch.randn(shape[0], 1)
    for function in (lambda x, y: (x * y + x, y - x), lambda x, y: (F.softmax(x * y, -1) + y, (x + y).sum(-1))):
        region = make(function, [x, y])
        found = coverage(region.module, "triton")
        if found.kind is None:
            assert "leading dim" in found.reason
            continue
        for schedule in schedules(region.task, region.module, "triton")[::24]:
            source = generate(region.task, region.module, schedule)
            agree(interpret(source, region.inputs, region.eager), region.eager, region.exact)


def test_every_region_of_the_list_is_covered_in_both_languages_as_the_same_kind(regions, region_name):
    module = regions(region_name).module
    assert coverage(module, "triton").kind == coverage(module, "cpp").kind is not None


def test_what_it_cannot_write_it_says_why():
    found = coverage(lower(lambda a: a.cumsum(-1), [torch.randn(4, 6)]), "triton")
    assert found.kind is None and "cumsum" in found.reason
