"""Regions that once came out wrong, or whose refusal has to be named: compiled and compared under many schedules."""

import torch
import torch.nn.functional as F

from autokernel.generate import Schedule, coverage, generate
from autokernel.graph.lower import lower


def test_a_region_without_inputs_is_refused_as_a_constant():
    def mask():
        place = torch.arange(8)
        return torch.where(place[:, None] >= place[None, :], 0.0, float("-inf"))

    found = coverage(lower(mask, []))
    assert found.kind is None and "it is a constant" in found.reason


def test_an_output_that_reads_nothing_is_written_in_any_order_of_loops(make, run, agree):
    region = make(lambda x: (x * 2, torch.arange(35).view(5, 7) * 1.5), [torch.randn(4, 3)])
    for schedule in (Schedule(), Schedule(order="loads"), Schedule(order="tiles")):
        source = generate(region.task, region.module, schedule)
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def interleaved(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def test_a_loop_cut_into_segments_stays_innermost_whatever_the_order(make, run, agree):
    region = make(interleaved, [torch.randn(2, 16, 64), torch.randn(16, 32), torch.randn(16, 32)])
    orders = [
        Schedule(order=order, segments=cut) for order in ("stores", "loads", "tiles") for cut in ("apart", "together")
    ]
    for schedule in orders:
        source = generate(region.task, region.module, schedule)
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def test_a_kept_value_that_two_outputs_need_is_not_kept_under_one_of_them(make, run, agree):
    def function(x, y):
        total = torch.exp(x) + y
        return F.layer_norm(total, (96,), eps=1e-5), F.layer_norm(total, (96,), eps=0.5)

    region = make(function, [torch.randn(6, 96), torch.randn(6, 96)])
    for schedule in (Schedule(keep="output"), Schedule(keep="output", rows=2, lanes=16), Schedule(keep="buffer")):
        source = generate(region.task, region.module, schedule)
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def test_uint8_wraps_around_and_integers_may_overflow(make, run, agree):
    def function(a, b, wide, x):
        byte = a + b
        return byte, byte > 100, a * b - 7, ~a, -b, (a * 3).sum(-1), x.to(torch.uint8), wide * wide + 1

    a, b = (torch.randint(0, 256, (5, 40), dtype=torch.uint8) for _ in range(2))
    wide, x = torch.randint(-(2**31), 2**31, (5, 40), dtype=torch.int32), torch.rand(5, 40) * 255
    region = make(function, [a, b, wide, x])
    for schedule in (Schedule(), Schedule(keep="output", lanes=16)):
        source = generate(region.task, region.module, schedule)
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def test_a_clamp_with_bounds_that_are_tensors_keeps_nan_from_each(make, run, agree):
    x, low, high = torch.randn(5, 40), -torch.rand(40), torch.rand(5, 40)
    x[0, 3] = low[7] = high[2, 9] = float("nan")

    def function(x, low, high):
        return x.clamp(low, high), torch.clamp_min(x, low), torch.clamp_max(x, high), x.clamp(-0.5, 0.5)

    region = make(function, [x, low, high])
    for schedule in (Schedule(), Schedule(streams=2)):
        source = generate(region.task, region.module, schedule)
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def test_an_output_whose_elements_share_memory_is_refused():
    found = coverage(lower(lambda x: (x * 2).expand(6, 40), [torch.randn(1, 40)]))
    assert found.kind is None and "share memory" in found.reason


def test_row_values_put_together_along_the_rows_are_refused():
    found = coverage(
        lower(lambda x, y: torch.cat((x.sum(-1), y.amax(-1)), 0), [torch.randn(5, 40), torch.randn(5, 40)])
    )
    assert found.kind is None and "no order of loops" in found.reason


def test_an_index_checked_in_a_flat_loop_of_many_threads_is_flagged_once(make, run, agree):
    region = make(lambda x, at: x.gather(0, at) * 2, [torch.randn(50), torch.randint(0, 50, (200,))])
    source = generate(region.task, region.module, Schedule())
    agree(run(source, region.inputs, region.eager), region.eager, region.exact)


def test_a_row_divisor_behind_a_condition_stays_there(make, run, agree):
    def function(x, y, divisor):
        return torch.cat((x / divisor, y), 0).softmax(-1)

    region = make(function, [torch.randn(3, 40), torch.randn(5, 40), torch.rand(3, 1) + 1])
    for schedule in (Schedule(), Schedule(divide="reciprocal"), Schedule(divide="reciprocal", keep="output")):
        source = generate(region.task, region.module, schedule)
        assert "_reciprocal = 1 / arg2" not in source
        agree(run(source, region.inputs, region.eager), region.eager, region.exact)
