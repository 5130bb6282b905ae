"""Device ceilings: plausible, monotone where they must be, and cached by what they depend on."""

import pytest
import torch

from autokernel.errors import DeviceUnavailable
from autokernel.profile.bounds import from_attributes
from autokernel.profile.ceilings import cache_path, measure_ceilings
from autokernel.profile.ceilings_cuda import without_tf32
from autokernel.records import Ceilings


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOKERNEL_CACHE_DIR", str(tmp_path))


def test_a_measurement_is_a_curve_over_sizes_and_a_rate_for_each_dtype():
    found = measure_ceilings(quick=True)
    sizes = [size for size, _ in found.bandwidth]
    assert sizes == sorted(sizes)
    assert sizes[-1] / sizes[0] >= 256
    assert all(1e8 < rate < 1e13 for _, rate in found.bandwidth)
    assert {"float32", "float64", "bfloat16"} == set(found.matrix)
    assert all(1e7 < rate < 1e15 for rate in found.matrix.values())
    assert found.threads == torch.get_num_threads()


def test_the_second_time_it_is_read_and_refresh_measures_again():
    first = measure_ceilings(quick=True)
    assert measure_ceilings(quick=True) == first
    again = measure_ceilings(quick=True, refresh=True)
    assert again.bandwidth != first.bandwidth
    assert Ceilings.load(cache_path(first.threads, quick=True)) == again


def test_another_thread_count_and_a_quick_measurement_have_entries_of_their_own():
    assert len({cache_path(1), cache_path(2), cache_path(1, quick=True)}) == 3
    before = torch.get_num_threads()
    assert measure_ceilings(quick=True, threads=1).threads == 1
    assert torch.get_num_threads() == before


def test_a_torn_cache_file_is_measured_again():
    path = cache_path(torch.get_num_threads(), quick=True)
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 1, "device"')
    found = measure_ceilings(quick=True)
    assert Ceilings.load(path) == found


def test_another_device_is_a_named_error():
    with pytest.raises(DeviceUnavailable, match="meta"):
        measure_ceilings("meta")


def test_a_gpu_that_is_not_there_is_a_named_error():
    with pytest.raises(DeviceUnavailable, match="cuda:99"):
        measure_ceilings("cuda:99")


def test_the_floor_of_a_gpu_is_at_least_a_launch_and_small_sizes_are_slower_than_the_memory():
    found = Ceilings(
        device="test",
        threads=1,
        bandwidth=((2**16, 3e10), (2**20, 4e11), (2**30, 4e12)),
        matrix={"bfloat16": 7e14, "float32": 5e13},
        measured_at="now",
        launch_us=2.0,
    )
    assert found.floor_us(0, 0, "bfloat16") == 2.0
    assert found.floor_us(1000, 64, "bfloat16") == 2.0
    assert found.floor_us(0, 2**30, "float32") == pytest.approx(1e6 * 2**30 / 4e12)
    assert found.floor_us(7 * 10**11, 64, "bfloat16") == pytest.approx(1000)
    sizes = [2**power for power in range(16, 31)]
    assert [found.bytes_per_second(size) for size in sizes] == sorted(found.bytes_per_second(size) for size in sizes)


def test_a_physical_bound_comes_from_clock_and_width_and_is_left_out_when_it_was_passed():
    bounds = from_attributes(sms=132, clock_khz=1_980_000, memory_khz=3_201_000, bus_bits=6144)
    assert bounds.bytes_per_second == pytest.approx(4.917e12, rel=1e-3)
    assert bounds.flops["bfloat16"] == 132 * 1.98e9 * 16384
    kept = bounds.beyond(4.2e12, {"bfloat16": 7e14, "float64": 1e15})
    assert kept.bytes_per_second == bounds.bytes_per_second
    assert "bfloat16" in kept.flops and "float64" not in kept.flops
    assert bounds.beyond(5e12, {}).bytes_per_second is None


def test_what_the_driver_does_not_tell_is_no_bound():
    bounds = from_attributes(sms=132, clock_khz=0, memory_khz=0, bus_bits=6144)
    assert (bounds.bytes_per_second, bounds.flops) == (None, {})
    found = Ceilings(device="test", threads=1, bandwidth=((1, 1.0),), matrix={"float32": 1.0}, measured_at="now")
    assert found.bound_us(10**9, 10**9, "float32") == 0.0
    bounded = found.model_copy(update={"spec_bytes_per_second": 4e12, "spec_flops": {"float32": 1e15}})
    assert bounded.bound_us(0, 4 * 10**6, "float32") == pytest.approx(1.0)
    assert bounded.bound_us(2 * 10**9, 4, "float32") == pytest.approx(2.0)


@pytest.mark.parametrize("interface", ["allow_tf32", "precision", "fp32_precision"])
def test_products_are_measured_without_tf32_and_the_user_s_choice_comes_back(interface):
    matmul, before = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
    choose = {
        "allow_tf32": lambda: setattr(matmul, "allow_tf32", True),
        "precision": lambda: torch.set_float32_matmul_precision("high"),
        "fp32_precision": lambda: setattr(matmul, "fp32_precision", "tf32"),
    }
    try:
        choose[interface]()
        with without_tf32():
            assert matmul.fp32_precision == "ieee" and not matmul.allow_tf32
        assert matmul.fp32_precision == "tf32"
        if interface != "fp32_precision":
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision(before)
