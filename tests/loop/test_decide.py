import pytest

from autokernel.loop.decide import Standing, could_be_simpler, decide, size
from autokernel.records import Decision, Outcome, Reason, Stage, Timing, Verdict
from autokernel.testing.authors import kernel

LONG, SHORT = kernel(10.0, padding=30), kernel(10.0, padding=2)


def timed(speedup, low=None, high=None, confirmed=False):
    low, high = low or speedup * 0.99, high or speedup * 1.01
    return Timing(
        incumbent_us=10.0 * speedup,
        candidate_us=10.0,
        speedup=speedup,
        ci_low=low,
        ci_high=high,
        pairs=8,
        confirmed=confirmed,
    )


def a_verdict(timing=None, outcome=Outcome.accepted, reason=Reason.ok, stage=Stage.confirm):
    return Verdict(
        task="01-norm",
        kernel_sha256="0",
        device="cpu",
        isolation="plain",
        verdict=outcome,
        stage=stage,
        reason=reason,
        timing=timing,
    )


def ruled(timing, source=LONG, incumbent=LONG, best=None, min_gain=0.005, has_better=False):
    standing = Standing(incumbent, best, has_better or best is not None)
    return decide(a_verdict(timing), source, standing, min_gain)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.rejected, Reason.wrong_values),
        (Outcome.suspect, Reason.time_disagrees),
        (Outcome.error, Reason.harness),
    ],
)
def test_what_is_not_accepted_is_reverted_with_stage_and_reason(outcome, reason):
    verdict = a_verdict(outcome=outcome, reason=reason, stage=Stage.shapes)
    ruling = decide(verdict, LONG, Standing(None), 0.005)
    assert ruling.decision is Decision.reverted
    assert ruling.reason == f"{outcome.value} at shapes: {reason.value}"


def test_what_the_screen_dropped_is_reverted_with_its_ratio():
    verdict = a_verdict(timed(0.9), Outcome.rejected, Reason.too_slow, Stage.screen)
    assert decide(verdict, LONG, Standing(None), 0.005).reason == "not faster: 0.9× PyTorch in the screen"
    assert decide(verdict, SHORT, Standing(LONG), 0.005).decision is Decision.reverted


def test_the_first_accepted_kernel_is_kept_although_pytorch_is_faster():
    ruling = ruled(timed(0.6), incumbent=None)
    assert ruling.decision is Decision.kept
    assert "first accepted kernel, 0.6×" in ruling.reason


def test_the_first_accepted_kernel_is_kept_without_a_timing():
    assert ruled(None, incumbent=None).decision is Decision.kept


def test_a_confirmed_gain_is_kept():
    assert ruled(timed(1.05, confirmed=True)).decision is Decision.kept


def test_a_gain_that_was_not_confirmed_is_reverted():
    ruling = ruled(timed(1.05))
    assert ruling.decision is Decision.reverted
    assert "not confirmed" in ruling.reason


def test_a_gain_whose_interval_reaches_one_is_reverted():
    assert ruled(timed(1.05, low=1.0, confirmed=True)).decision is Decision.reverted


def test_a_sure_gain_below_the_threshold_is_reverted():
    ruling = ruled(timed(1.004, low=1.002, confirmed=True))
    assert ruling.decision is Decision.reverted
    assert "less than 0.5 %" in ruling.reason
    assert ruled(timed(1.004, low=1.002, confirmed=True), min_gain=0.003).decision is Decision.kept


def test_an_untimed_kernel_never_replaces_an_incumbent():
    assert ruled(None, source=SHORT).decision is Decision.reverted


def test_a_clearly_shorter_kernel_that_is_not_slower_is_kept_as_simpler():
    ruling = ruled(timed(1.0, low=0.996), source=SHORT)
    assert ruling.decision is Decision.kept
    assert ruling.reason.startswith("simpler: ")


def test_a_shorter_kernel_that_may_be_slower_is_reverted():
    assert ruled(timed(1.0, low=0.994), source=SHORT).decision is Decision.reverted


def test_simpler_is_measured_against_the_best_ever_so_that_small_losses_do_not_add_up():
    assert ruled(timed(1.0, low=0.997), source=SHORT, best=timed(0.99, low=0.99)).decision is Decision.reverted


def test_simpler_needs_the_timing_against_the_best_ever_where_that_is_another_kernel():
    assert ruled(timed(1.0, low=0.997), source=SHORT, has_better=True).decision is Decision.reverted
    assert ruled(timed(1.0, low=0.997), source=SHORT, best=timed(1.0, low=0.996)).decision is Decision.kept


def test_a_slightly_shorter_kernel_is_not_simpler():
    assert not could_be_simpler(kernel(10.0, padding=29), LONG, timed(1.0, low=0.999))
    assert could_be_simpler(SHORT, LONG, timed(1.0, low=0.999))


def test_comments_and_blank_lines_do_not_make_a_kernel_longer():
    commented = LONG.replace("\n", "\n\n# a remark\n", 1).replace("void run() {}", "// why\nvoid run() {}  /* that */")
    assert size(commented) == size(LONG)


def test_code_inside_the_source_literal_counts():
    assert size(LONG.replace("void run() {}", "void run() { int a = 1; }")) > size(LONG)


def test_a_source_that_is_not_python_has_a_size():
    assert size("def (:\n  '''") > 0
