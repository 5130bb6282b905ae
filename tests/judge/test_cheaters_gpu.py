"""The cheaters as Triton kernels through the judge on a GPU: each refused for its reason, each twin accepted.

After a cheat that faults, hangs or spoils a cache, the next kernel of the same sandbox is judged as ever.
"""

from __future__ import annotations

import pytest

from autokernel.judge import Opponent, Request
from autokernel.judge.bench import open_sandbox
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Allow, Outcome
from autokernel.task import LoadedTask
from autokernel.task.file import from_file
from autokernel.testing.cheaters import CUDA_CHEATS, CUDA_ODD, Case, reference

pytestmark = pytest.mark.gpu

DEADLINE = 6.0  # seconds for a step of the child; what hangs takes that long
TWINS = {
    (case.task, case.library_calls, case.twin): case for case in reversed(CUDA_CHEATS) if case.twin is not None
}  # each text once


@pytest.fixture(scope="module")
def judges():
    with open_sandbox(device="cuda:0") as sandbox:
        made: dict[tuple[str, bool], Judge] = {}

        def judge(case: Case) -> Judge:
            key = (case.task, case.library_calls)
            if key not in made:
                made[key] = Judge(task_of(case), sandbox, seeds=Seeds.fresh())
            return made[key]

        yield judge


def task_of(case: Case) -> LoadedTask:
    loaded = from_file(reference(case.task), device="cuda")
    allow = Allow(library_calls=case.library_calls)
    return LoadedTask(
        task=loaded.task.model_copy(update={"allow": allow}),
        reference=loaded.reference,
        module=loaded.module,
        path=loaded.path,
    )


def request_for(case: Case) -> Request:
    return Request(level=case.level, deadline_seconds=DEADLINE)


@pytest.mark.parametrize("case", CUDA_CHEATS, ids=lambda case: case.name)
def test_a_cheat_on_the_gpu_is_refused_where_and_why_it_should_be(judges, case: Case):
    verdict = judges(case).verdict(case.source, Opponent("eager"), request_for(case))
    assert case.wrong(verdict) == ""
    assert verdict.explanation
    assert verdict.stages[-1].status == "failed"


@pytest.mark.parametrize("case", TWINS.values(), ids=lambda case: case.name)
def test_the_honest_twin_of_a_cheat_on_the_gpu_is_accepted(judges, case: Case):
    request = Request(level="correctness", deadline_seconds=DEADLINE)
    verdict = judges(case).verdict(case.twin, Opponent("eager"), request)
    assert verdict.verdict is Outcome.accepted, f"{verdict.stage} {verdict.reason}: {verdict.explanation}"


@pytest.mark.parametrize("case", CUDA_ODD, ids=lambda case: case.name)
def test_an_odd_but_honest_kernel_on_the_gpu_is_accepted(judges, case: Case):
    verdict = judges(case).verdict(case.source, Opponent("eager"), request_for(case))
    assert case.wrong(verdict) == ""
    assert verdict.error is not None and verdict.error.tolerance <= 1


@pytest.mark.parametrize("name", ["an illegal access", "an endless kernel", "poisoning the compiler's cache"])
def test_after_a_fault_of_the_device_the_next_kernel_is_judged_as_ever(judges, name):
    case = next(case for case in CUDA_CHEATS if case.name == name)
    request = Request(level="correctness", deadline_seconds=DEADLINE)
    assert case.wrong(judges(case).verdict(case.source, Opponent("eager"), request)) == ""
    plain = next(case for case in CUDA_ODD if case.name == "plain")
    verdict = judges(plain).verdict(plain.source, Opponent("eager"), request)
    assert verdict.verdict is Outcome.accepted, f"{verdict.stage} {verdict.reason}: {verdict.explanation}"
