"""The figures of a report: gains of tasks, the estimate for the model, numbers in words."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autokernel.records import Timing, Verdict
from autokernel.report import run_facts, units
from autokernel.report.progress import replay
from autokernel.report.view import Gain, gain_of, model_gain, product, standings

ratios = st.floats(min_value=0.2, max_value=5)


@given(st.lists(st.tuples(ratios, st.floats(min_value=0.0, max_value=0.2)), min_size=1, max_size=6))
def test_a_products_interval_holds_it_and_is_wider_than_the_widest_factor(found):
    gains = [Gain(speedup, speedup * math.exp(-width), speedup * math.exp(width)) for speedup, width in found]
    total = product(gains)
    assert total.speedup == pytest.approx(math.prod(speedup for speedup, _ in found))
    assert total.low <= total.speedup * (1 + 1e-9) and total.high >= total.speedup * (1 - 1e-9)
    widest = max(width for _, width in found)
    assert math.log(total.high / total.speedup) >= widest - 1e-6


def test_one_kept_experiment_keeps_its_own_interval(make_trial):
    kept = make_trial(1, "a", 1.5, kept=True)
    gain = gain_of([kept, make_trial(2, "a", 3.0)], {})
    assert (gain.speedup, gain.low, gain.high) == pytest.approx((1.5, kept.ci_low, kept.ci_high))


def test_a_missing_interval_is_not_invented(make_trial):
    kept = make_trial(1, "a", 1.5, kept=True).model_copy(update={"ci_low": None, "ci_high": None})
    gain = gain_of([kept, make_trial(2, "a", 1.1, kept=True)], {})
    assert gain.speedup == pytest.approx(1.65)
    assert gain.low is None and gain.high is None


def test_reverted_experiments_gain_nothing(make_trial):
    assert gain_of([make_trial(1, "a", 9.0)], {}) is None


def test_the_side_by_side_figure_of_the_last_kept_verdict_wins_over_the_product(make_trial):
    trials = [make_trial(1, "a", 1.5, kept=True), make_trial(2, "a", 1.2, kept=True), make_trial(3, "a", 1.1)]
    timing = Timing(incumbent_us=10, candidate_us=6, speedup=1.66, ci_low=1.6, ci_high=1.7, pairs=8, confirmed=True)
    verdict = Verdict(
        task="a",
        kernel_sha256="0",
        device="cpu",
        isolation="plain",
        verdict="accepted",
        stage="confirm",
        reason="ok",
        baselines={"inductor": timing},
        first_incumbent="inductor",
    )
    assert gain_of(trials, {2: verdict}) == Gain(1.66, 1.6, 1.7)


def test_amdahl_a_task_of_a_fifth_made_twice_as_fast_saves_a_tenth(profile):
    first = profile.regions[0].model_copy(update={"share": 0.2, "task": "t"})
    assert model_gain(profile.model_copy(update={"regions": (first,)}), {"t": 2.0}) == pytest.approx(1 / 0.9)


def test_without_a_profile_there_is_no_estimate():
    assert model_gain(None, {"t": 2.0}) is None


def test_every_task_has_a_standing_also_one_that_was_never_tried(view, trials):
    lines = {line.task: line for line in standings(view)}
    assert set(lines) == {task.id for task in view.tasks}
    assert lines["05-repeat"].experiments == 0
    assert sum(line.experiments for line in lines.values()) == len(trials)


def test_the_replayed_history_ends_where_the_standings_do(view):
    history = replay(view)
    for line in standings(view):
        if line.gain:
            assert history.tracks[line.task].best == pytest.approx(line.gain.speedup)
    assert len(history.points) + len(history.wrong) == len(view.trials)


def test_facts_are_json_and_say_that_a_live_run_has_no_result(view):
    facts = run_facts(dataclasses.replace(view, proof=None, owner="process 1"))
    assert facts["result"] is None and facts["in_use_by"] == "process 1"
    assert facts["experiments"] == len(view.trials)
    assert run_facts(view)["proof"]["recommended"] == "autokernel"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.4, "400 ns"), (9.994, "9.99 µs"), (9.996, "10.0 µs"), (123.4, "123 µs"), (20_000.0, "20.0 ms"),
     (3.2e6, "3.20 s")],
)  # fmt: skip
def test_device_times_have_three_digits(value, text):
    assert units.duration_us(value) == text


@pytest.mark.parametrize(("value", "text"), [(-1, "0s"), (59.4, "59s"), (185, "3m05s"), (4800, "1h20m")])
def test_wall_times_read_like_the_budget_flag(value, text):
    assert units.duration(value) == text
