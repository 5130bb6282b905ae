"""A verdict in words."""

import io

import pytest
from rich.console import Console

from autokernel.records import ErrorFigures, StageResult, Timing, Verdict
from autokernel.report import judged, units


def text(renderable):
    console = Console(width=120, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


@pytest.fixture
def accepted():
    timing = Timing(incumbent_us=20.0, candidate_us=10.0, speedup=2.0, ci_low=1.9, ci_high=2.1, pairs=8,
                    floor_us=8.0, pct_of_ceiling=80.0, confirmed=True)  # fmt: skip
    return Verdict(
        task="01-norm",
        kernel_sha256="0",
        device="cpu",
        isolation="bubblewrap",
        verdict="accepted",
        stage="confirm",
        reason="ok",
        stages=(StageResult(name="smoke", status="passed", seconds=0.5, detail="2 calls"),),
        error=ErrorFigures(max=1e-6, rmse=1e-7, eager_max=1e-6, eager_rmse=1e-7, tolerance=0.3),
        timing=timing,
        baselines={"inductor": timing.model_copy(update={"speedup": 1.5, "ci_low": 1.4, "ci_high": 1.6})},
        warnings=("two kernels [marked] atomics",),
        seconds=4.2,
    )


def test_an_accepted_kernel_shows_its_times_ceiling_error_and_warnings(accepted):
    shown = text(judged(accepted))
    assert "10.0 µs against 20.0 µs, 2.00× [1.90, 2.10]" in shown and "8 pairs, confirmed" in shown
    assert "floor 8.00 µs" in shown and "80 % of the ceiling" in shown
    assert "against torch.compile: 1.50× [1.40, 1.60]" in shown
    assert "at worst 30 % of what is allowed" in shown
    assert "warning: two kernels [marked] atomics" in shown
    assert "ACCEPTED  (cpu, bubblewrap, 4.2 s)" in shown


def test_stages_can_be_left_out_by_who_has_seen_them(accepted):
    assert "2 calls" in text(judged(accepted))
    assert "2 calls" not in text(judged(accepted, stages=False))


def test_a_rejected_kernel_shows_stage_reason_and_explanation():
    verdict = Verdict(task="01-norm", kernel_sha256="0", device="cpu", isolation="plain", verdict="rejected",
                      stage="edges", reason="out_of_bounds", explanation="byte 4 past the end of out[0] changed",
                      stages=(StageResult(name="edges", status="failed", seconds=0.5),))  # fmt: skip
    shown = text(judged(verdict))
    assert "REJECTED at edges: out_of_bounds  (cpu, plain" in shown
    assert "byte 4 past the end of out[0] changed" in shown


def test_an_experiment_says_what_the_loop_decided_and_why(accepted, make_trial):
    trial = make_trial(7, "01-norm", 1.01).model_copy(update={"reason": "not faster: 1.01× the incumbent"})
    assert "Experiment 7 on 01-norm, by search: reverted (not faster: 1.01× the incumbent)" in text(
        judged(accepted, trial)
    )


@pytest.mark.parametrize(
    ("worst", "words"),
    [(0.3, "30 % of"), (1.2, "120 % of"), (2e7, "2e+07 times what"), (None, "an infinity or NaN")],
)
def test_how_far_over_is_said_in_fitting_words(worst, words):
    assert words in units.of_allowed(worst)
