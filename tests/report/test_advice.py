"""Advice follows from the figures: each rule speaks when they say so, and is silent when they don't."""

import io

import pytest
from rich.console import Console

from autokernel import report
from autokernel.records import Ceilings, MaskRow, Profile, RegionRow
from autokernel.report import advice

CEILINGS = Ceilings(
    device="test", threads=2, bandwidth=((1, 1e10),), matrix={"float32": 1e11, "bfloat16": 1.1e11}, measured_at="now"
)


def region(title="linear", share=0.5, *, away=1.2, generator=None, kind="other", flops=0, **more):
    time = 1000.0 * share
    return RegionRow(
        task=None, fingerprint=title, shape_key="", title=title, kind=kind, occurrences=1, time_us=time, share=share,
        floor_us=time / away, recoverable_us=time - time / away, flops=flops, min_bytes=8, generator=generator, **more,
    )  # fmt: skip


def profile(*regions, **more):
    values = {"total_us": 1000.0, "uninstrumented_us": 1000.0, "attributed": 1.0, "lines": (), "ceilings": CEILINGS}
    given = {"target": "m.py", "device": "cpu", "threads": 2, "regions": regions, **values, **more}
    return Profile(**given)


def mask_row(**more):
    given = {
        "count": 12,
        "folds_to": "none",
        "reason": "ones is true everywhere",
        "eager": "none",
        "share": 0.2,
        **more,
    }
    return MaskRow(**given)


def kinds(found):
    return [each.kind for each in advice.advise(found)]


# --- kernels --------------------------------------------------------------------------------------------------------


def test_what_the_search_can_write_is_named_with_what_it_can_gain_at_most():
    rows = region("add → rms norm", 0.3, away=4.0, generator="row"), region("linear", 0.7)
    found = advice.generated(profile(*rows, flags=("--batch", "8")))
    assert found.saves == pytest.approx(0.225)
    assert "30.0 % of a call" in found.title
    assert "add → rms norm (225 µs to gain, 4.0× its floor)" in found.detail
    assert found.command == "autokernel optimize m.py --device cpu --batch 8"


def test_regions_of_one_title_are_named_once():
    rows = [region("swiglu", 0.1, away=4.0, generator="pointwise") for _ in range(3)]
    assert "swiglu (225 µs to gain, 4.0× its floor, 3 regions)" in advice.generated(profile(*rows)).detail


def test_no_search_is_advised_where_kernels_are_near_their_floor_or_nobody_generates_them():
    assert advice.generated(profile(region("softmax", 0.3, away=1.03, generator="row"))) is None
    assert advice.generated(profile(region("linear", 0.9, away=9.0))) is None


def test_a_model_of_python_objects_has_no_command_line():
    found = advice.generated(profile(region("softmax", 0.3, away=3.0, generator="row"), target="python"))
    assert found.command is None


def test_a_command_is_safe_to_paste():
    found = advice.generated(profile(region("softmax", 0.3, away=3.0, generator="row"), target="my model.py; rm x"))
    assert found.command == "autokernel optimize 'my model.py; rm x' --device cpu"


def test_uncovered_work_is_named_with_its_share_and_left_where_it_is_near_its_floor():
    found = advice.uncovered(profile(region("linear", 0.52), region("matmul", 0.12)))
    assert "covers 64.0 % of a call: linear 52.0 %, matmul 12.0 %" in found.title
    assert found.saves is None and found.command is None and "None of it is worth a kernel" in found.detail


def test_uncovered_work_far_from_its_floor_is_for_another_author():
    found = advice.uncovered(profile(region("linear", 0.5), region("scan", 0.2, away=10.0)))
    assert found.saves == pytest.approx(0.18)
    assert "scan (180 µs to gain" in found.detail and "linear" not in found.detail
    assert found.command == "autokernel extract m.py --device cpu"


def test_nothing_uncovered_no_advice():
    view = region("aten.view", 0.3, kind="operator").model_copy(update={"fingerprint": ""})
    assert advice.uncovered(profile(region("softmax", 0.9, generator="row"), region("linear", 0.04), view)) is None


# --- time that no kernel has ----------------------------------------------------------------------------------------


def on_gpu(gaps_us):
    gap = region("launch gaps", gaps_us / 1000.0, kind="gap")
    return profile(gap, device="cuda:0", busy_us=1000.0 - gaps_us, gaps_us=gaps_us)


def test_launch_gaps_above_five_percent_call_for_cuda_graphs():
    found = advice.gaps(on_gpu(230.0))
    assert found.kind == "cuda-graphs" and found.saves == pytest.approx(0.23)
    assert "23.0 % of a call (230 µs)" in found.title and "reduce-overhead" in found.detail


def test_small_gaps_and_the_cpu_call_for_none():
    assert advice.gaps(on_gpu(50.0)) is None
    assert advice.gaps(profile()) is None


def test_gaps_are_no_uncovered_work():
    assert advice.uncovered(on_gpu(400.0)) is None


def test_python_between_the_operators_of_a_cpu_model_is_named():
    found = advice.between(profile(attributed=0.8, outside_us=100.0))
    assert found.saves == pytest.approx(0.1) and "10.0 % of a call" in found.title


def test_what_is_attributed_or_outside_or_on_a_gpu_is_not_between_operators():
    assert advice.between(profile(attributed=0.97)) is None
    assert advice.between(profile(attributed=0.7, outside_us=300.0)) is None
    assert advice.between(profile(attributed=0.7, busy_us=900.0)) is None


def test_code_outside_the_graphs_is_named_with_its_share():
    found = advice.outside(profile(outside_us=120.0))
    assert "12.0 % of a call (120 µs)" in found.title and "graph_breaks" in found.detail


def test_no_code_outside_no_advice():
    assert advice.outside(profile()) is None


# --- precision ------------------------------------------------------------------------------------------------------


def with_rates(**rates):
    return CEILINGS.model_copy(update={"matrix": rates})


def test_float32_products_on_a_device_with_fast_bfloat16_are_named():
    row = region("linear", 0.5, away=1.0, flops=50_000_000, dtype="float32")
    found = advice.precision(profile(row, ceilings=with_rates(float32=1e11, bfloat16=8e11)))
    assert found.saves == pytest.approx(0.5 * (1 - 1 / 8)) and "8.0× as fast" in found.title


@pytest.mark.parametrize(
    ("dtype", "flops", "fast"),
    [("bfloat16", 50_000_000, 8e11), ("float32", 1000, 8e11), ("float32", 50_000_000, 1.2e11)],
    ids=["already narrow", "bound by memory", "no faster here"],
)
def test_no_narrower_type_without_a_reason(dtype, flops, fast):
    row = region("linear", 0.5, away=1.0, flops=flops, dtype=dtype)
    assert advice.precision(profile(row, ceilings=with_rates(float32=1e11, bfloat16=fast))) is None


# --- masks ----------------------------------------------------------------------------------------------------------


def test_a_mask_that_only_tracing_builds_is_called_that_and_the_unfused_path_too():
    found = advice.mask(mask_row(traced_as="unfused", dtype="bfloat16"))
    assert "12 attentions (20.0 % of a call) only while something traces" in found.title
    assert "passes no mask" in found.title
    assert "the unfused way, in float32" in found.detail and "can be slower than this one" in found.detail
    assert "folds to nothing: `autokernel optimize` folds it" in found.detail


def test_float32_attention_is_not_said_to_be_widened():
    assert "in float32" not in advice.mask(mask_row(traced_as="unfused", dtype="float32")).detail


def test_a_fused_kernel_in_the_trace_is_not_called_unfused():
    found = advice.mask(mask_row(traced_as="efficient", eager="causal", folds_to="causal"))
    assert "the efficient kernel" in found.detail and "unfused" not in found.detail
    assert "passes is_causal and no mask" in found.title


def test_a_mask_of_data_that_eager_never_has_does_not_fold_and_is_best_not_given():
    found = advice.mask(mask_row(folds_to="given", reason="it depends on mask, an input", traced_as="unfused"))
    assert "It does not fold (it depends on mask, an input)" in found.detail
    assert "pass no mask to the model" in found.detail and "folds it" not in found.detail


def test_a_mask_of_the_user_s_that_says_nothing_is_named_with_what_to_write():
    found = advice.mask(mask_row(eager="given", folds_to="causal"))
    assert "is exactly causal is handed to 12 attentions" in found.title
    assert "pass `is_causal=True` in its place" in found.detail


@pytest.mark.parametrize("eager", ["given", None])
def test_a_mask_that_says_something_is_no_news(eager):
    assert advice.mask(mask_row(eager=eager, folds_to="given")) is None


# --- all of it ------------------------------------------------------------------------------------------------------


def test_the_largest_gain_comes_first_and_what_has_none_last():
    rows = region("softmax", 0.2, away=4.0, generator="row"), region("linear", 0.3)
    found = profile(*rows, outside_us=400.0, masks=(mask_row(),))
    assert kinds(found) == ["outside", "optimize", "uncovered", "attention-mask"]


def test_attention_that_compiling_makes_slower_comes_before_all_gains_and_before_compiling():
    slower, harmless = mask_row(traced_as="unfused"), mask_row(traced_as="efficient")
    found = on_gpu(300.0).model_copy(update={"masks": (harmless, slower)})
    assert kinds(found) == ["attention-mask", "cuda-graphs", "attention-mask"]
    assert "unfused" in advice.advise(found)[0].detail and "before you compile" in advice.gaps(found).detail
    assert "before you compile" not in advice.gaps(on_gpu(300.0)).detail


def test_figures_that_contradict_each_other_are_said_before_all_else():
    rows = (region("softmax", 0.4, away=4.0, generator="row"),)
    assert kinds(profile(*rows, uninstrumented_us=800.0)) == ["measure-again", "optimize"]
    assert kinds(profile(*rows, uninstrumented_us=990.0)) == ["optimize"]


def test_a_profile_with_nothing_to_gain_has_no_advice():
    assert advice.advise(profile(region("softmax", 1.0, away=1.01, generator="row"))) == ()


def shown(found, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(report.advice_text(found), crop=False)
    return console.file.getvalue()


def test_the_terminal_numbers_it_and_keeps_commands_whole():
    text = shown(profile(region("softmax [x]", 0.4, away=4.0, generator="row"), target="a/" * 60 + "m.py"))
    assert "What to do" in text and "1. autokernel can write kernels for 40.0 % of a call" in text
    assert "at most 30.0 %, 1.43×" in text and "softmax [x]" in text
    assert f"autokernel optimize {'a/' * 60}m.py --device cpu\n" in text


def test_the_terminal_says_so_when_nothing_stands_out():
    assert advice.NOTHING in shown(profile(region("softmax", 1.0, away=1.01, generator="row"))).replace("\n", " ")


def test_the_data_hold_the_profile_and_the_advice():
    facts = report.profile_facts(profile(region("softmax", 0.4, away=4.0, generator="row")))
    assert facts["schema"] == 1 and facts["regions"][0]["title"] == "softmax"
    assert [(each["kind"], each["saves"]) for each in facts["advice"]] == [("optimize", pytest.approx(0.3))]
