"""The same against itself: what its trials make of the limits. Timings are drawn, as a device would give them."""

import math

import pytest

from autokernel.judge.pairs import interval
from autokernel.loop import Budget, noise
from autokernel.loop.run import run_loop
from autokernel.records import SameAgainstSame, Timing
from autokernel.testing.authors import RecordedDevice, ScriptedProposer, kernel
from autokernel.testing.paper import loaded, paper_run
from autokernel.testing.simulated import Device, again

NORM = "01-norm"


def a_trial(ratios):
    speedup, low, high = interval(ratios)
    timing = Timing(
        incumbent_us=10.0 * speedup, candidate_us=10.0, speedup=speedup, ci_low=low, ci_high=high, pairs=len(ratios)
    )
    return SameAgainstSame(task=NORM, timing=timing, min_gain_before=0.005, min_gain_after=0.005)


def trials(device, count=1, gain=0.0):
    return [a_trial(again(device, seed).ratios(gain, 8)) for seed in range(count)]


def test_without_a_trial_the_usual_limits_hold():
    limits = noise.from_trials([], None)
    assert (limits.spread, limits.cap, limits.min_gain) == (0.0, 25, 0.005)


@pytest.mark.parametrize(("spread", "cap", "least", "most"), [(0.003, 12, 0.005, 0.006), (0.06, 40, 0.03, 0.055)])
def test_a_quiet_device_asks_for_few_pairs_and_a_busy_one_for_many(spread, cap, least, most):
    limits = noise.from_trials(trials(Device(spread, 0), 9), None)
    assert limits.spread == pytest.approx(spread, rel=0.3)
    assert limits.cap == cap
    assert least <= limits.min_gain <= most


def test_one_disturbed_trial_among_several_does_not_set_the_spread():
    quiet = trials(Device(0.003, 0), 4)
    disturbed = trials(Device(0.2, 0))
    assert noise.from_trials([*disturbed, *quiet], None).spread < 0.006


@pytest.mark.parametrize("spread", [0.003, 0.02, 0.06])
def test_chance_alone_hardly_ever_widens_the_least_gain(spread):
    found = trials(Device(spread, 0), 1000)
    claims = [trial for trial in found if noise.claim(trial.timing) > 0]
    assert len(claims) < 1000 * (0.005 + 3 * math.sqrt(0.005 / 1000))


@pytest.mark.parametrize("lie", [0.02, -0.02])
def test_a_difference_where_there_is_none_makes_the_least_gain_three_times_as_large(lie):
    (liar,) = trials(Device(0.002, 0), gain=lie)
    limits = noise.from_trials([*trials(Device(0.002, 0), 3), liar], None)
    assert limits.min_gain == pytest.approx(3 * abs(liar.timing.speedup - 1))


def test_a_difference_too_small_to_be_kept_widens_nothing():
    (liar,) = trials(Device(0.0005, 0), gain=0.003)
    assert noise.claim(liar.timing) > 0
    assert noise.from_trials([liar], None).min_gain == 0.005


def test_what_the_user_asked_for_is_widened_too():
    (liar,) = trials(Device(0.002, 0), gain=0.04)
    assert noise.from_trials([], 0.01).min_gain == 0.01
    assert noise.from_trials([liar], 0.01).min_gain > 0.1


class Lying(RecordedDevice):
    """Says that what is timed first is 4 % slower than itself."""

    def _time(self, where, first, second):
        timing = super()._time(where, first, second)
        return timing.model_copy(update={"speedup": 1.04, "ci_low": 1.035, "ci_high": 1.045, "pairs": 8})


@pytest.mark.parametrize("device", [RecordedDevice, Lying])
def test_a_run_begins_with_a_trial_makes_another_every_25_experiments_and_keeps_what_they_said(tmp_path, device):
    sources = [kernel(50.0), *(kernel(60.0 + step) for step in range(25))]
    with paper_run(tmp_path / "run", {"norm": 0.3}) as folder:
        run_loop(
            folder,
            loaded(folder),
            folder.profile(),
            ScriptedProposer({NORM: sources}, outlooks={NORM: 0.1}),
            device({NORM: 100.0}, {NORM: 60.0}),
            budget=Budget(experiments=26),
            say=lambda line: None,
        )
        assert sorted(path.name for path in (folder.path / "verdicts").glob("aa-*")) == ["aa-0.json", "aa-25.json"]
        first, second = noise.trials(folder)
        assert [first.claimed, second.claimed] == [device is Lying] * 2
        assert noise.limits(folder).min_gain == second.min_gain_after
        assert (second.min_gain_after == pytest.approx(0.12)) == (device is Lying)
