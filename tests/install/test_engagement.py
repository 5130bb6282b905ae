"""Which kernels ran, from what the profiler recorded."""

from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType

from autokernel.install.engagement import attribute, sort_events
from autokernel.install.kernel import jitted

SOURCE = """
import triton
import triton.language as tl
from triton import jit

LANGUAGE = "triton"


@triton.jit
def helper(x):
    return x + 1


@triton.autotune(configs=[], key=["n"])
@triton.jit
def softmax_kernel(x, out, n):
    pass


@jit
def combine_kernel(x, out):
    pass


@triton.jit(do_not_specialize=["n"])
def split_kernel(x, out, n):
    pass


def launch(x, out):
    pass
"""


def recorded(*events):
    """As the profiler lists one call: (name, on the device) in order."""
    return [SimpleNamespace(name=name, device_type=DeviceType.CUDA if on else DeviceType.CPU) for name, on in events]


def test_events_of_a_plain_call_are_dispatches_and_runs_on_the_device():
    events = recorded(
        ("aten::linear", False),
        ("autokernel::silu_01_ab", False),
        ("nvjet_tst_128x256", True),
        ("silu_kernel", True),
        ("autokernel::silu_01_ab", False),
        ("cudaLaunchKernel", False),
        ("silu_kernel", True),
        ("Memcpy DtoD (Device -> Device)", True),
    )
    dispatched, launched = sort_events(events, frozenset({"autokernel::silu_01_ab"}))
    assert dispatched == {"autokernel::silu_01_ab": 2}
    assert launched["silu_kernel"] == 2
    assert "aten::linear" not in dispatched


def test_names_of_compiled_functions_are_read_from_the_source_without_running_it():
    assert jitted(SOURCE) == {"helper", "softmax_kernel", "combine_kernel", "split_kernel"}


def test_a_replayed_graph_dispatches_nothing_and_its_kernels_count():
    kernels = {"01-a": frozenset({"split_kernel", "combine_kernel", "helper"}), "02-b": frozenset({"other_kernel"})}
    launched = {"split_kernel": 16, "combine_kernel": 16}
    assert attribute({}, launched, kernels, {"01-a": 16, "02-b": 3}) == {"01-a": 16, "02-b": 0}


def test_a_dispatch_whose_kernel_never_ran_on_the_device_is_no_call():
    kernels = {"01-a": frozenset({"a_kernel"})}
    assert attribute({"01-a": 4}, {}, kernels, {"01-a": 4}) == {"01-a": 0}
    assert attribute({"01-a": 4}, {"a_kernel": 8}, kernels, {"01-a": 4}) == {"01-a": 4}


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        (18, {"01-a": 16, "02-b": 2}),
        (17, {"01-a": 15, "02-b": 1}),
        (16, {"01-a": 14, "02-b": 0}),
        (1, {"01-a": 0, "02-b": 0}),
    ],
)
def test_runs_of_a_shared_name_count_only_as_far_as_the_others_can_t_explain_them(runs, found):
    kernels = dict.fromkeys(("01-a", "02-b"), frozenset({"norm_kernel"}))
    assert attribute({}, {"norm_kernel": runs}, kernels, {"01-a": 16, "02-b": 2}) == found


def test_the_profiler_s_own_events_have_what_is_read_of_them():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sum()
    dispatched, launched = sort_events(profiler.events(), frozenset({"aten::sum"}))
    assert dispatched == {"aten::sum": 1}
    assert not launched
