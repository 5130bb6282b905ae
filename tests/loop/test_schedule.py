import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.loop.schedule import TaskView, expected_gain, finished, gain_per_minute, pick, rounds


def a_view(name="01-norm", **changes):
    return dataclasses.replace(TaskView(id=name, share=0.2, recoverable=0.5, experiments=1, seconds=3.0), **changes)


def test_each_task_gets_one_experiment_before_any_gets_two():
    views = [a_view("01-a", share=0.5, outlook=0.5), a_view("02-b", share=0.01, experiments=0)]
    picked = pick(views, 100)
    assert picked.task == "02-b"
    assert picked.reason.startswith("first experiment on 02-b: 1.0 % of the model's time, 0.5 % recoverable")


def test_first_visits_go_by_recoverable_time():
    views = [
        a_view("01-a", experiments=0, share=0.5, recoverable=0.1),
        a_view("02-b", experiments=0, share=0.2, recoverable=0.6),
    ]
    assert pick(views, 100).task == "02-b"


def test_the_larger_share_wins_when_all_else_is_equal():
    picked = pick([a_view("01-a", share=0.1), a_view("02-b", share=0.3)], 100)
    assert picked.task == "02-b"
    assert "next 01-a" in picked.reason


def test_a_share_shrinks_by_what_was_already_gained():
    before, after = a_view(recoverable=1.0, outlook=0.01), a_view(recoverable=1.0, outlook=0.01, speedup=4.0)
    assert gain_per_minute(after) == pytest.approx(gain_per_minute(before) / 4)


def test_slow_experiments_count_for_less():
    assert pick([a_view("01-slow", seconds=30.0), a_view("02-quick", seconds=3.0)], 100).task == "02-quick"


def test_results_move_the_expectation():
    poor, rich = a_view("01-a", recent_gains=(0.0, 0.0)), a_view("02-b", recent_gains=(0.2, 0.1))
    assert expected_gain(poor) < expected_gain(a_view()) < expected_gain(rich)
    assert pick([poor, rich], 100).task == "02-b"


def test_nothing_is_expected_below_the_floor():
    assert expected_gain(a_view(outlook=0.9, pct_of_ceiling=95.0)) == pytest.approx(0.05)
    assert expected_gain(a_view(recoverable=0.5, speedup=2.0)) == 0.0


def test_after_five_reverts_another_task_is_taken_with_the_reason():
    stuck = a_view("01-a", share=0.5, reverts_in_row=5, experiments=6)
    picked = pick([stuck, a_view("02-b", share=0.01)], 100)
    assert picked.task == "02-b"
    assert "left for later: 01-a (5 reverts in a row)" in picked.reason


def test_a_task_left_after_a_plateau_comes_back_when_the_others_dried_up():
    stuck = a_view("01-a", share=0.5, reverts_in_row=7, experiments=8)
    others = [a_view("02-b", exhausted="search has nothing more to try"), a_view("03-c", reverts_in_row=10)]
    picked = pick([stuck, *others], 100)
    assert picked.task == "01-a"
    assert "back to it although 7 reverts in a row" in picked.reason


def test_a_search_moves_on_when_what_is_left_can_not_pay_not_after_reverts():
    searching = a_view("01-a", share=0.5, reverts_in_row=12, outlook=0.05)
    idle = a_view("02-b", share=0.001, outlook=0.0001)
    assert rounds(searching)[0] == 0
    assert rounds(idle)[0] == 1
    assert pick([searching, idle], 100).task == "01-a"


def test_a_task_at_its_budget_waits_for_the_others():
    spent = a_view("01-a", share=0.5, spent=31.0, allowance=30.0)
    picked = pick([spent, a_view("02-b", share=0.01)], 100)
    assert picked.task == "02-b"
    assert "its budget of 30 s is spent" in picked.reason


@pytest.mark.parametrize(("percent", "ended"), [(96.9, False), (97.0, True), (120.0, True)])
def test_a_task_at_97_percent_of_the_ceiling_is_finished(percent, ended):
    assert (finished(a_view(pct_of_ceiling=percent)) is not None) == ended


def test_when_every_task_is_finished_the_reason_names_each():
    picked = pick([a_view("01-a", pct_of_ceiling=98.0), a_view("02-b", exhausted="nothing more")], 100)
    assert picked.task is None
    assert picked.reason == "every task is finished: 01-a: at 98 % of the ceiling; 02-b: nothing more"


def test_an_experiment_that_can_not_end_in_time_is_not_begun():
    assert pick([a_view("01-long", seconds=9.0, share=0.9), a_view("02-short", seconds=2.0)], 5.0).task == "02-short"
    picked = pick([a_view(seconds=9.0)], 5.0)
    assert picked.task is None
    assert picked.reason == "no experiment fits: 5.0 s are left, the shortest takes 9.0 s"


def test_no_tasks_at_all():
    assert pick([], 100).reason == "there is no task"


VIEWS = st.lists(
    st.builds(
        TaskView,
        id=st.text("abc", min_size=1, max_size=8),
        share=st.floats(0, 1),
        recoverable=st.floats(0, 1),
        speedup=st.floats(0.1, 100),
        pct_of_ceiling=st.none() | st.floats(0, 150),
        experiments=st.integers(0, 50),
        reverts_in_row=st.integers(0, 15),
        recent_gains=st.lists(st.floats(0, 1), max_size=8).map(tuple),
        seconds=st.floats(0, 100),
        spent=st.floats(0, 100),
        allowance=st.none() | st.floats(20, 100),
        outlook=st.none() | st.floats(-1, 2),
        exhausted=st.none() | st.just("nothing more"),
    ),
    max_size=4,
    unique_by=lambda view: view.id,
)


@given(VIEWS, st.floats(0, 200))
def test_a_pick_is_always_open_fitting_and_explained(views, remaining):
    picked = pick(views, remaining)
    by_name = {view.id: view for view in views}
    assert picked.reason
    if picked.task is not None:
        assert finished(by_name[picked.task]) is None
        assert by_name[picked.task].seconds <= remaining
        assert picked.task in picked.reason
    else:
        assert all(finished(view) is not None or view.seconds > remaining for view in views)


@settings(max_examples=30)
@given(VIEWS)
def test_no_open_task_is_starved(views):
    """Whoever is picked gains nothing and spends time: in the end every open task had its turn."""
    state = {view.id: view for view in views if finished(view) is None}
    if not state:
        return
    seen = set()
    for _ in range(150):
        name = pick(list(state.values()), float("inf")).task
        assert name is not None
        seen.add(name)
        view = state[name]
        state[name] = dataclasses.replace(
            view,
            experiments=view.experiments + 1,
            reverts_in_row=view.reverts_in_row + 1,
            recent_gains=(*view.recent_gains, 0.0)[-5:],
            outlook=None,
            spent=view.spent + 1.0,
        )
        if seen == set(state):
            return
    assert seen == set(state)
