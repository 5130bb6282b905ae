"""Profiles of real small models: complete, additive, in the user's own lines."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.generate import Coverage
from autokernel.graph.capture import capture
from autokernel.profile.measure import profile
from autokernel.profile.runs import mean_us, quiet_half
from autokernel.records import Ceilings, Profile
from autokernel.workload import Case, Workload

CEILINGS = Ceilings(
    device="test", threads=1, bandwidth=((65536, 1e10), (2**28, 2e10)), matrix={"float32": 1e11}, measured_at="now"
)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = self.norm(x)
        y = F.gelu(y) * 2
        return x + self.line(y)


class Stack(nn.Module):
    def __init__(self, width=256, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def profiled(model, *args, coverage=lambda region: Coverage(region.kind), seconds=0.0):
    workload = Workload(name="m", model=model, cases=(Case(args),), target="python")
    return profile(workload, capture(model, args), CEILINGS, coverage, seconds=seconds)


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    return profiled(Stack().eval(), torch.randn(512, 256))


def test_nearly_all_time_belongs_to_a_region_or_a_named_operator(stack):
    assert stack.attributed >= 0.95
    assert stack.attributed == pytest.approx(sum(row.share for row in stack.regions))
    assert stack.attributed <= 1.0
    assert stack.skipped == () and stack.outside_us == 0
    assert all(row.title for row in stack.regions)


def test_layers_share_rows_and_occurrences_are_counted(stack):
    linear = [row for row in stack.regions if row.title == "linear"]
    assert [row.occurrences for row in linear] == [3]
    assert linear[0].flops == 2 * 512 * 256 * 256
    assert linear[0].dtype == "float32"


def test_floor_and_recoverable_time_are_of_all_occurrences_and_rows_are_sorted_by_it(stack):
    recoverable = [row.recoverable_us for row in stack.regions]
    assert recoverable == sorted(recoverable, reverse=True)
    for row in stack.regions:
        if row.fingerprint:
            floor = row.occurrences * CEILINGS.floor_us(row.flops, row.min_bytes, "float32")
            assert row.floor_us == pytest.approx(floor)
            assert row.recoverable_us == pytest.approx(max(row.time_us - floor, 0))


def test_time_of_source_lines_adds_up_and_names_the_user_s_code(stack):
    assert sum(row.time_us for row in stack.lines) == pytest.approx(stack.attributed * stack.total_us, rel=1e-6)
    assert all(row.line.startswith("test_measure.py:") for row in stack.lines)
    assert any("self.line(y)" in row.line for row in stack.lines)
    assert any("F.gelu(y) * 2" in row.line for row in stack.lines)


def test_what_no_generator_covers_is_listed_with_its_reason():
    found = profiled(
        Stack(layers=1).eval(),
        torch.randn(8, 256),
        coverage=lambda region: Coverage(None, "not mine") if region.title == "linear" else Coverage("row"),
    )
    linear = next(row for row in found.regions if row.title == "linear")
    assert (linear.generator, linear.reason) == (None, "not mine")
    assert linear.share > 0


def test_a_part_that_sleeps_takes_the_share_it_sleeps_for():
    @torch.library.custom_op("autokernel_test::nap", mutates_args=())
    def nap(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return x.clone()

    @nap.register_fake
    def _(x):
        return torch.empty_like(x)

    class Sleepy(nn.Module):
        def forward(self, x):
            y = torch.exp(x)
            y = nap(y)
            return y * 2

    found = profiled(Sleepy(), torch.randn(64))
    row = max(found.regions, key=lambda row: row.time_us)
    assert row.time_us >= 20_000
    assert row.share > 0.8
    assert "nap(y)" in max(found.lines, key=lambda line: line.time_us).line
    assert found.uninstrumented_us >= 20_000


def test_code_between_graph_breaks_is_model_time_and_listed():
    class Broken(nn.Module):
        def forward(self, x):
            y = torch.exp(x)
            torch._dynamo.graph_break()
            time.sleep(0.02)
            return y * 2

    found = profiled(Broken(), torch.randn(64))
    assert any("outside the captured graphs" in part for part in found.skipped)
    assert found.outside_us >= 15_000
    assert found.total_us >= 20_000
    assert found.attributed < 0.5


def test_the_user_s_buffers_and_inputs_are_as_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x, cache):
            self.seen.add_(1)
            cache.add_(x)
            return cache * 2

    model, x, cache = Counting().eval(), torch.ones(4), torch.zeros(4)
    captured = capture(model, (x, cache))
    model.seen.zero_()
    cache.zero_()
    profile(
        Workload(name="m", model=model, cases=(Case((x, cache)),), target="python"),
        captured,
        CEILINGS,
        lambda region: Coverage(region.kind),
        seconds=0.0,
    )
    assert not model.seen.any()
    assert not cache.any()


def test_the_profile_is_a_file(stack, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(stack.dump())
    assert Profile.load(path) == stack


def test_a_disturbed_run_is_left_out_of_the_mean():
    spent = [100, 101, 5000, 99, 102, 100]
    assert set(quiet_half(spent)) <= {0, 1, 3, 5}
    assert mean_us(spent, quiet_half(spent)) < 0.102
