"""Every cheater is rejected at its stage, for its reason; every honest twin, and every odd but honest kernel, passes.

All go through the judge as kernels of a run do: compiled, in a sandbox, in fresh children. Times play a part only in
the cases that are about time.
"""

from __future__ import annotations

import dataclasses

import pytest

from autokernel.errors import SandboxUnavailable
from autokernel.judge import Opponent, Request
from autokernel.judge.bench import open_sandbox
from autokernel.judge.isolation import bubblewrap_problem
from autokernel.judge.judge import Judge
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.seeds import Seeds
from autokernel.records import Allow, Outcome, Reason
from autokernel.task.file import from_file
from autokernel.testing.cheaters import CHEATS, ODD, Case, reference

DEADLINE = 4.0
REQUEST = Request(level="correctness", deadline_seconds=DEADLINE)
TWINS = {
    (case.task, case.library_calls, case.twin): case for case in reversed(CHEATS) if case.twin is not None
}  # each text once


@pytest.fixture(scope="module")
def judges():
    with open_sandbox(threads=1) as sandbox:
        needed = {(case.task, case.library_calls) for case in (*CHEATS, *ODD)}
        made = {key: judge_in(sandbox, *key) for key in sorted(needed)}
        yield lambda case: made[case.task, case.library_calls]


def judge_in(sandbox: Sandbox, name: str, library_calls: bool = True) -> Judge:
    loaded = from_file(reference(name))
    allow = Allow(library_calls=library_calls)
    task = loaded.task.model_copy(update={"allow": allow})
    return Judge(dataclasses.replace(loaded, task=task), sandbox, seeds=Seeds.fresh())


@pytest.mark.parametrize("case", CHEATS, ids=lambda case: case.name)
def test_a_cheat_is_rejected_where_and_why_it_should_be(judges, case: Case):
    if case.bubblewrap and bubblewrap_problem():
        pytest.skip("plain isolation does not shut away what it reaches for")
    request = Request(level=case.level, deadline_seconds=DEADLINE)
    verdict = judges(case).verdict(case.source, Opponent("eager"), request)
    assert case.wrong(verdict) == ""
    assert verdict.explanation and (verdict.timing is None or verdict.reason is Reason.too_slow)
    assert [stage.status for stage in verdict.stages].count("failed") == 1
    assert verdict.stages[-1].status == "failed"


@pytest.mark.parametrize("case", TWINS.values(), ids=lambda case: case.name)
def test_the_honest_twin_of_a_cheat_is_accepted(judges, case: Case):
    verdict = judges(case).verdict(case.twin, Opponent("eager"), REQUEST)
    assert verdict.verdict is Outcome.accepted, f"{verdict.stage} {verdict.reason}: {verdict.explanation}"


@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
def test_an_odd_but_honest_kernel_is_accepted(judges, case: Case):
    verdict = judges(case).verdict(case.source, Opponent("eager"), REQUEST)
    assert verdict.verdict is Outcome.accepted, f"{verdict.stage} {verdict.reason}: {verdict.explanation}"
    assert verdict.error is not None and verdict.error.tolerance <= 1


@pytest.mark.parametrize(
    "name",
    [
        "nothing written",
        "one element past the end",
        "a thread that fills the output later",
        "os._exit(0)",
        "forged verdict on every fd",
        "an endless loop, with children that ignore SIGTERM",
        "reading /proc/PPID/environ",
    ],
)
def test_cheats_against_the_process_fail_in_plain_isolation_too(plain_judge, name):
    case = next(case for case in CHEATS if case.name == name)
    verdict = plain_judge.verdict(case.source, Opponent("eager"), Request(level="correctness", deadline_seconds=2))
    assert verdict.isolation == "plain"
    assert (verdict.verdict, verdict.stage) == (case.verdict, case.stages[0])
    assert verdict.reason in case.reasons, verdict.explanation


@pytest.fixture(scope="module")
def plain_judge():
    with open_sandbox("plain", threads=1) as sandbox:
        yield judge_in(sandbox, "rms_norm")


def test_the_sandbox_that_was_asked_for_is_the_one_that_is_used():
    if bubblewrap_problem():
        with pytest.raises(SandboxUnavailable), open_sandbox("bubblewrap"):
            pass
        return
    with open_sandbox("bubblewrap", threads=1) as sandbox:
        assert sandbox.isolation == "bubblewrap"


def test_every_cheat_has_a_twin_that_differs_from_it_and_names_are_distinct():
    assert all(case.twin is not None and case.twin != case.source for case in CHEATS)
    assert len({case.name for case in (*CHEATS, *ODD)}) == len(CHEATS) + len(ODD)
    assert len(CHEATS) >= 35 and len(ODD) >= 12
    assert all(case.verdict is Outcome.rejected and Reason.ok not in case.reasons for case in CHEATS)
