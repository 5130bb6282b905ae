"""The first table for a GPU: device, kernels' time, launch gaps, how it was measured."""

import io

import pytest
from rich.console import Console

from autokernel.records import Ceilings, Profile, RegionRow
from autokernel.report import profile_table


def row(title, time_us, kind="other", **more):
    return RegionRow(
        task=None, fingerprint=title, shape_key="", title=title, kind=kind, occurrences=1, time_us=time_us,
        share=time_us / 1000, floor_us=time_us / 2, recoverable_us=time_us / 2, flops=0, min_bytes=0, **more,
    )  # fmt: skip


GAP = row("launch gaps: the GPU waits for the CPU", 200.0, "gap", generator=None, reason="no kernel can")
MANY = tuple(row(f"region {number}", 50.0, generator="row") for number in range(16))


@pytest.fixture
def profile():
    ceilings = Ceilings(
        device="NVIDIA Test", threads=2, bandwidth=((1, 1.0),), matrix={"float32": 1.0}, measured_at="now"
    )
    return Profile(
        target="m.py", device="cuda:0", threads=2, total_us=1000.0, uninstrumented_us=1000.0, attributed=1.0,
        regions=(*MANY, GAP), lines=(), ceilings=ceilings, device_name="NVIDIA Test", busy_us=800.0, gaps_us=200.0,
        notes=("times are by CUDA events",),
    )  # fmt: skip


def text(profile):
    console = Console(file=io.StringIO(), width=160)
    console.print(profile_table(profile))
    return console.file.getvalue()


def test_the_device_is_named_and_threads_are_not(profile):
    shown = text(profile)
    assert "1.00 ms a call, cuda:0, NVIDIA Test" in shown
    assert "thread" not in shown
    assert "Kernels run for 800 µs of it" in shown and "of the kernels' time is attributed" in shown


def test_gaps_stand_apart_below_the_regions_however_many_there_are(profile):
    shown = text(profile)
    assert "launch gaps: the GPU waits for the CPU: 200 µs, 20.0 % of the time – no kernel can" in shown
    assert "… and 2 regions more" in shown or "and 2 regions" in shown
    assert "No built-in generator" not in shown


def test_how_it_was_measured_is_told_where_it_is_unusual(profile):
    assert "note: times are by CUDA events" in text(profile)
    assert "note:" not in text(profile.model_copy(update={"notes": ()}))
