"""Ceilings and profiles on a real GPU: complete, additive, and in relations that hold on any device."""

import itertools
import json
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.generate import Coverage
from autokernel.graph.capture import capture
from autokernel.profile import measure_cuda
from autokernel.profile.ceilings import cuda_cache_path, cuda_device, measure_ceilings
from autokernel.profile.chrome import write_trace
from autokernel.profile.measure import profile
from autokernel.records import Profile
from autokernel.workload import Case, Workload

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOKERNEL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def ceilings():
    return measure_ceilings("cuda:0")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(1024, 16) for _ in range(3))).to("cuda", torch.bfloat16).eval()


@pytest.fixture(scope="module")
def workload(model):
    x = torch.randn(4, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    return Workload(name="m", model=model, cases=(Case((x,)),), target="python")


def profiled(workload, ceilings, seconds=2.0):
    captured = capture(workload.model, workload.cases[0].args)
    return profile(workload, captured, ceilings, lambda region: Coverage(region.kind), seconds=seconds)


@pytest.fixture(scope="module")
def found(workload, ceilings):
    return profiled(workload, ceilings)


def test_small_sizes_do_not_reach_what_large_ones_do(ceilings):
    rates = dict(ceilings.bandwidth)
    sizes = sorted(rates)
    assert sizes[-1] >= 2**28
    assert rates[sizes[0]] < 0.5 * rates[sizes[-1]]
    times = [size / rates[size] for size in sizes]
    assert all(after > 0.9 * before for before, after in itertools.pairwise(times))
    assert times[0] >= 0.5e-6 * ceilings.launch_us
    assert 0.2 < ceilings.launch_us < 20


def test_narrow_products_are_faster_and_nothing_passes_its_physical_bound(ceilings):
    assert set(ceilings.matrix) == {"bfloat16", "float16", "float32", "float64"}
    assert ceilings.matrix["bfloat16"] > 2 * ceilings.matrix["float32"]
    assert ceilings.spec_bytes_per_second is not None
    assert ceilings.spec_bytes_per_second >= ceilings.bandwidth[-1][1]
    for dtype, rate in ceilings.matrix.items():
        assert ceilings.spec_flops[dtype] >= rate
    assert ceilings.l2_bytes and ceilings.sms and ceilings.driver


def test_ceilings_are_kept_for_the_device_and_driver(ceilings):
    assert cuda_cache_path(cuda_device("cuda:0")).exists()
    begin = time.monotonic()
    assert measure_ceilings("cuda") == ceilings
    assert time.monotonic() - begin < 0.5


def test_measuring_takes_seconds_not_minutes():
    begin = time.monotonic()
    measure_ceilings("cuda:0", refresh=True)
    middle = time.monotonic()
    measure_ceilings("cuda:0", refresh=True, quick=True)
    assert middle - begin < 6
    assert time.monotonic() - middle < 1


def test_nearly_all_of_the_kernels_time_has_a_name(found):
    assert found.device == "cuda:0" and found.device_name
    assert 0.95 <= found.attributed <= 1.0001
    kernels = [row for row in found.regions if row.kind != "gap"]
    assert {"linear"} <= {row.title for row in kernels}
    assert found.notes == ()


def test_the_captured_graphs_keep_the_gpu_as_busy_as_the_model_does(found):
    kernels = sum(row.time_us for row in found.regions if row.kind != "gap")
    assert kernels == pytest.approx(found.attributed * (found.total_us - found.gaps_us), rel=1e-6)
    assert kernels == pytest.approx(found.busy_us, rel=0.05)


def test_gaps_are_a_row_of_their_own_and_make_up_the_rest_of_the_call(found):
    (gap,) = (row for row in found.regions if row.kind == "gap")
    assert gap.time_us == found.gaps_us >= 0
    assert gap.generator is None and gap.recoverable_us == 0
    assert found.busy_us + found.gaps_us == pytest.approx(max(found.uninstrumented_us, found.busy_us))


def test_floors_are_below_the_times_of_large_regions(found, ceilings):
    for row in found.regions:
        if row.fingerprint:
            assert row.floor_us >= row.occurrences * ceilings.launch_us * 0.999
    large = max((row for row in found.regions if row.title == "linear"), key=lambda row: row.time_us)
    assert large.floor_us < 1.1 * large.time_us


def test_source_lines_add_up_and_are_the_user_s(found):
    kernels = found.attributed * (found.total_us - found.gaps_us)
    assert sum(line.time_us for line in found.lines) == pytest.approx(kernels, rel=1e-6)
    assert all(line.line.startswith("test_profile_gpu.py:") for line in found.lines)


def test_a_model_of_tiny_kernels_is_mostly_gaps(ceilings):
    class Tiny(nn.Module):
        def forward(self, x):
            for _ in range(50):
                x = torch.sin(x) @ x
            return x

    x = torch.randn(32, 32, device="cuda")
    found = profiled(Workload(name="t", model=Tiny().eval(), cases=(Case((x,)),), target="python"), ceilings, 1.0)
    assert found.gaps_us > 0.3 * found.uninstrumented_us
    assert found.attributed >= 0.95


def test_without_cupti_events_give_nearly_the_same_and_it_is_said(workload, ceilings, found, monkeypatch):
    monkeypatch.setattr(measure_cuda.Profiler, "record", lambda self, session: False)
    stamped = profiled(workload, ceilings)
    assert any("CUDA events" in note for note in stamped.notes)
    assert stamped.busy_us == pytest.approx(found.busy_us, rel=0.25)
    assert stamped.attributed >= 0.9


def test_the_profile_is_a_file(found, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(found.dump())
    assert Profile.load(path) == found


def test_a_trace_holds_kernels_and_the_regions_that_launch_them(model, workload, tmp_path):
    case = workload.cases[0]
    write_trace(tmp_path / "trace.json", workload, capture(model, case.args, case.kwargs))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert [event for event in events if event.get("cat") == "kernel"]
    assert {"model, call 1", "linear"} <= {event["name"] for event in events if event.get("cat") == "user_annotation"}
