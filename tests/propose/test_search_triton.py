"""The search author on a task for a GPU: Triton, words for its choices, and what it will ask for next."""

import hashlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from autokernel.errors import EvaluationsSpent
from autokernel.generate import TritonSchedule
from autokernel.graph.lower import lower
from autokernel.propose import EVALUATION, Brief
from autokernel.propose.search import OPENING, SearchProposer
from autokernel.propose.wording import hypothesis
from autokernel.records import Decision, Task, TensorSpec, Trial


@pytest.fixture(scope="module")
def softmax():
    x = torch.zeros(64, 4096, dtype=torch.bfloat16)
    module = lower(lambda x: F.softmax(x * 0.5, -1), [x])
    (name,) = [node.name for node in module.graph.nodes if node.op == "placeholder"]

    def spec(label):
        return TensorSpec(name=label, dtype="bfloat16", shape=(64, 4096), stride=(4096, 1))

    task = Task(
        id="01-softmax",
        title="softmax",
        fingerprint="f",
        shape_key="k",
        device_class="cuda",
        inputs=(spec(name),),
        outputs=(spec("out0"),),
    )
    return SimpleNamespace(task=task, module=module, reference=None, path=None)


def trial(number, speedup, kept, reason=""):
    return Trial(
        experiment=number,
        tag="t",
        kernel_type="row",
        correctness="PASS",
        task="01-softmax",
        decision=Decision.kept if kept else Decision.reverted,
        reason=reason,
        speedup_vs_incumbent=speedup,
        commit="",
        proposer="search",
        seconds=1.0,
        finished_at="2026-01-01T00:00:00Z",
    )


def brief(task, history=(), sources=()):
    return Brief(task, None, None, None, 0.2, tuple(history), tuple(sources), 2)


def sha(source):
    return hashlib.sha256(source.encode()).hexdigest()


def spent(source):
    raise EvaluationsSpent(author="search", limit=0)


def test_a_task_for_cuda_gets_triton_and_one_for_an_unknown_device_nothing(softmax):
    proposal = SearchProposer().propose(brief(softmax), spent)
    assert proposal.language == "triton" and 'LANGUAGE = "triton"' in proposal.source
    assert proposal.hypothesis.startswith("first guess")
    elsewhere = SimpleNamespace(**{**vars(softmax), "task": softmax.task.model_copy(update={"device_class": "mps"})})
    assert SearchProposer().propose(brief(elsewhere), spent) is None


def test_the_upcoming_sources_are_those_the_opening_asks_for_then_those_proposed(softmax):
    author, asked = SearchProposer(), []

    def quick(source):
        asked.append(source)
        return SimpleNamespace(timing=SimpleNamespace(speedup=1.0 + 0.1 * len(asked)))

    upcoming = author.upcoming(brief(softmax), OPENING)
    proposal = author.propose(brief(softmax), quick)
    assert asked == upcoming and len(upcoming) == OPENING
    history = [trial(n, 1.1 + 0.1 * n, False, f"{EVALUATION} by the author") for n in range(2)]
    rest = author.upcoming(brief(softmax, history, [sha(s) for s in asked[:2]]), 3)
    assert rest == asked[2:]
    history = [trial(n, 1.1 + 0.1 * n, False, f"{EVALUATION} by the author") for n in range(OPENING)]
    history.append(trial(OPENING, 1.5, True))
    sources = [sha(s) for s in (*asked, proposal.source)]
    for number in range(4):
        following = brief(softmax, history, sources)
        expected = author.upcoming(following, 3)
        made = author.propose(following, spent)
        assert len(expected) == 3 and made.source == expected[0]
        history.append(trial(OPENING + 1 + number, 0.98, False))
        sources.append(sha(made.source))
    assert author.upcoming(brief(softmax), 0) == []


def test_every_choice_has_words():
    base = TritonSchedule()
    changes = {
        "structure": "loop",
        "warps": 8,
        "rows": 4,
        "block": 2048,
        "persistent": 2,
        "stages": 3,
        "divide": "fast",
        "exp": "folded",
        "evict": "hints",
        "order": "tiles",
    }
    said = {hypothesis(TritonSchedule(**{axis: value}), base) for axis, value in changes.items()}
    assert len(said) == len(changes) and not any("=" in text for text in said)
    assert "2 programs a multiprocessor" in hypothesis(TritonSchedule(persistent=2), base)
    assert hypothesis(base, None) == "first guess: a program for each tile"
