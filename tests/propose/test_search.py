"""The search author against a made-up device: each schedule has a speed, and the history says what was measured."""

import hashlib
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from autokernel.errors import EvaluationsSpent
from autokernel.generate import Schedule
from autokernel.graph.lower import lower
from autokernel.propose import EVALUATION, Brief
from autokernel.propose.search import CURIOSITY, OPENING, Effects, SearchProposer, log_speeds
from autokernel.propose.wording import hypothesis
from autokernel.records import Decision, Task, TensorSpec, Trial

MIN_GAIN = 0.005


def loaded(function, *inputs):
    module = lower(function, inputs)
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    out = function(*inputs)
    specs = [
        TensorSpec(name=n, dtype="float32", shape=tuple(t.shape), stride=t.stride())
        for n, t in zip(names, inputs, strict=True)
    ]
    result = TensorSpec(name="out0", dtype="float32", shape=tuple(out.shape), stride=out.stride())
    task = Task(
        id="01-softmax", title="softmax", fingerprint="f", shape_key="k", inputs=tuple(specs), outputs=(result,)
    )
    return SimpleNamespace(task=task, module=module, reference=function, path=None)


@pytest.fixture(scope="module")
def softmax():
    return loaded(lambda x: F.softmax(x * 0.5, -1), torch.randn(64, 256))


def trial(number, speedup, kept, correctness="PASS"):
    return Trial(
        experiment=number,
        tag="t",
        kernel_type="row",
        correctness=correctness,
        task="01-softmax",
        decision=Decision.kept if kept else Decision.reverted,
        reason="",
        speedup_vs_incumbent=speedup,
        commit="",
        proposer="search",
        seconds=1.0,
        finished_at="2026-01-01T00:00:00Z",
    )


def brief(task, history=(), sources=(), threads=2):
    return Brief(task, None, None, None, 0.2, tuple(history), tuple(sources), threads)


def sha(source):
    return hashlib.sha256(source.encode()).hexdigest()


def evaluate(source):
    raise EvaluationsSpent(author="search", limit=0)


def simulate(task, speed, rounds, author=None):
    """Run the loop's keep-or-revert over a made-up speed of each schedule; the trials, sources and proposals."""
    history, sources, proposals, incumbent = [], [], [], 1.0
    for number in range(rounds):
        author = author or SearchProposer()
        proposal = author.propose(brief(task, history, sources), evaluate)
        if proposal is None:
            break
        found = speed(proposal.schedule)
        ratio = found / incumbent
        kept = ratio > 1 + MIN_GAIN
        history.append(trial(number, ratio, kept))
        sources.append(sha(proposal.source))
        proposals.append(proposal)
        incumbent = found if kept else incumbent
    return history, sources, proposals, incumbent


def landscape(text):
    """Additive in the logarithm, with one interaction; the best is keep=buffer lanes=16 rows=2 divide=exact."""
    value = 1.0
    value *= 1.10 if "keep=buffer" in text else 1.0
    value *= 1.06 if "lanes=16" in text else 1.0
    value *= 1.05 if "rows=2" in text else 0.9 if "rows=4" in text else 1.0
    value *= 0.97 if "divide=reciprocal" in text else 1.0
    value *= 0.8 if "threads=one" in text else 1.0
    return value * (0.98 if "rows=2" in text and "streams=4" in text else 1.0)


def test_the_first_proposal_is_the_first_guess_and_says_what_it_is(softmax):
    proposal = SearchProposer().propose(brief(softmax), evaluate)
    assert proposal.author == "search" and proposal.language == "cpp" and "SOURCE" in proposal.source
    assert proposal.hypothesis.startswith("first guess") and proposal.predicted_gain > 0


def test_the_opening_proposes_the_fastest_of_its_evaluations_and_resumes_them(softmax):
    asked = []

    def quick(source):
        asked.append(sha(source))
        return SimpleNamespace(timing=SimpleNamespace(speedup=1.3 if len(asked) == 3 else 1.1))

    author = SearchProposer()
    proposal = author.propose(brief(softmax), quick)
    assert len(set(asked)) == OPENING and sha(proposal.source) == asked[2]
    assert proposal.hypothesis.startswith(f"fastest of {OPENING}") and "1.3" not in proposal.hypothesis
    history = [
        trial(n, 1.5 if n == 1 else 1.0, False).model_copy(update={"reason": f"{EVALUATION} by the author"})
        for n in range(2)
    ]
    known, asked[:] = asked[:2], []
    resumed = SearchProposer().propose(brief(softmax, history, known), lambda source: quick(source))
    assert len(asked) == OPENING - 2 and sha(resumed.source) == known[1]


def test_a_task_with_a_proposal_behind_it_has_no_opening(softmax):
    first = SearchProposer().propose(brief(softmax), evaluate)
    with pytest.raises(AssertionError, match="asked"):
        SearchProposer().propose(brief(softmax), _must_not_be_asked)
    assert SearchProposer().propose(brief(softmax, [trial(0, 1.2, True)], [sha(first.source)]), _must_not_be_asked)


def _must_not_be_asked(source):
    raise AssertionError("asked")


def test_no_source_is_proposed_twice_and_each_says_what_it_changes(softmax):
    _, sources, proposals, _ = simulate(softmax, landscape, 40)
    assert len(sources) == len(set(sources)) >= 15
    assert all(proposal.hypothesis and "\n" not in proposal.hypothesis for proposal in proposals)


def test_it_finds_the_best_of_thousands_of_schedules_in_a_few_dozen_trials(softmax):
    history, _, _, found = simulate(softmax, landscape, 60)
    assert found == pytest.approx(1.10 * 1.06 * 1.05)
    assert len(history) < 40


def test_a_resumed_search_goes_on_where_it_stopped(softmax):
    straight = simulate(softmax, landscape, 12)[1]
    shared = SearchProposer()
    assert simulate(softmax, landscape, 12, shared)[1] == straight


def test_it_ends_when_nothing_left_can_pay(softmax):
    def flat(text):
        return 1.5 if "threads=one" not in text else 1.0

    history, sources, _, _ = simulate(softmax, flat, 200)
    author = SearchProposer()
    assert len(history) < 60
    assert author.propose(brief(softmax, history, sources), evaluate) is None
    assert author.outlook(brief(softmax, history, sources)) == 0.0


def test_the_outlook_is_high_for_an_untouched_task_and_falls_with_failures(softmax):
    author = SearchProposer()
    outlooks = [author.outlook(brief(softmax))]
    history, sources = [], []
    for number in range(8):
        proposal = author.propose(brief(softmax, history, sources), evaluate)
        history.append(trial(number, 1.4 if number == 0 else 0.99, number == 0))
        sources.append(sha(proposal.source))
        outlooks.append(author.outlook(brief(softmax, history, sources)))
    assert outlooks[0] > 0.2 and outlooks[-1] < outlooks[1] and outlooks[-1] < 0.05


def test_it_gives_up_a_task_whose_kernels_are_all_refused(softmax):
    history, sources = [], []
    author = SearchProposer()
    for number in range(20):
        proposal = author.propose(brief(softmax, history, sources), evaluate)
        if proposal is None:
            break
        history.append(trial(number, None, False, "FAIL"))
        sources.append(sha(proposal.source))
    assert 3 <= len(history) <= 8


def test_a_task_that_can_not_be_generated_is_left_to_others():
    task = loaded(lambda a, b: a @ b, torch.randn(4, 4), torch.randn(4, 4))
    author = SearchProposer()
    assert author.propose(brief(task), evaluate) is None


def test_speeds_are_chained_over_the_incumbents_of_their_time():
    a, b, c = Schedule(), Schedule(lanes=16), Schedule(lanes=32)
    known = {"a": a, "b": b, "c": c}
    history = (trial(0, 2.0, True), trial(1, 0.5, False), trial(2, 1.1, True), trial(3, None, False, "FAIL"))
    found = log_speeds(history, ("a", "b", "c", "other"), known)
    assert found[a] == pytest.approx(math.log(2.0))
    assert found[b] == pytest.approx(0.0)
    assert found[c] == pytest.approx(math.log(2.2))


def test_effects_seen_apart_are_added_up():
    base, lanes, rows = Schedule(), Schedule(lanes=16), Schedule(rows=2)
    model = Effects({base: 0.0, lanes: 0.2, rows: 0.19}, lanes)
    assert model.promise(Schedule(lanes=16, rows=2)) > 0.03 > model.promise(base)
    assert model.promise(Schedule(lanes=16, parts=2)) == CURIOSITY


def test_every_change_of_a_schedule_has_words():
    base = Schedule()
    assert "4 rows in flight" in hypothesis(Schedule(rows=4), base)
    assert "past the caches" in hypothesis(Schedule(stores="streaming"), base)
    text = hypothesis(Schedule(rows=2, lanes=32), base)
    assert "32 accumulators" in text and "2 rows" in text
