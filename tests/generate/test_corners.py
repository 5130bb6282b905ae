"""Regions that once came out wrong, or whose refusal has to be named: compiled and compared under many schedules."""

import torch

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
