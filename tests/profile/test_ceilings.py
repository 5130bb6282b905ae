"""Device ceilings: plausible, monotone where they must be, and cached by what they depend on."""

import pytest
import torch

from autokernel.errors import DeviceUnavailable
from autokernel.profile.ceilings import cache_path, measure_ceilings
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: it is measured in test_profile_gpu.py")
def test_a_gpu_that_is_not_there_is_a_named_error():
    with pytest.raises(DeviceUnavailable, match="cuda"):
        measure_ceilings("cuda:0")
