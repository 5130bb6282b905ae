"""Whatever ends a candidate's process, or the zygote's, the next candidate's verdict is what it was before."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from autokernel.judge import Opponent, Request, isolation
from autokernel.judge.bench import open_sandbox
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Outcome, Reason
from autokernel.task.file import from_file
from autokernel.testing.cheaters import ODD, reference

REQUEST = Request(level="correctness", deadline_seconds=2.0)
HONEST = next(case.source for case in ODD if case.name == "plain")
BODY = "    rms_norm(x, weight, out)\n"
assert BODY in HONEST
FAULTS = {
    "an illegal access": ("    import ctypes; ctypes.string_at(0)\n", Reason.died),
    "an endless kernel": ("    while True: pass\n", Reason.timeout),
    "out of memory": ("    torch.ones(1 << 44)\n", Reason.out_of_memory),
    "an abort": ("    import os; os.abort()\n", Reason.died),
}
WAITS = HONEST.replace(BODY, BODY + "    import time; time.sleep(600)\n")
KINDS = ["plain", pytest.param("bubblewrap", marks=pytest.mark.skipif(
    isolation.bubblewrap_problem() is not None, reason="bubblewrap does not work here"))]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def judge(request):
    with open_sandbox(isolation=request.param, threads=1) as sandbox:
        yield Judge(from_file(reference("rms_norm")), sandbox, seeds=Seeds.fresh())


def story(verdict):
    return verdict.verdict, verdict.stage, verdict.reason, [(one.name, one.status) for one in verdict.stages]


def honest(judge):
    verdict = judge.verdict(HONEST, Opponent("eager"), REQUEST)
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    return story(verdict)


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault_the_next_verdict_is_what_it_was_before(judge, name):
    body, reason = FAULTS[name]
    before = honest(judge)
    verdict = judge.verdict(HONEST.replace(BODY, body), Opponent("eager"), REQUEST)
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, reason), verdict.explanation
    assert honest(judge) == before


@pytest.mark.parametrize("victim", ["child", "zygote"])
def test_what_is_killed_from_outside_in_the_middle_of_a_call_costs_one_verdict(judge, victim):
    before = honest(judge)
    sandbox = judge.sandbox
    seen = []

    def kill():
        until = time.monotonic() + 30
        while time.monotonic() < until:
            child = sandbox._child
            if child is not None and child._base_memory:  # its kernel is loaded
                time.sleep(0.3)
                seen.append(child.pid if victim == "child" else sandbox._zygote_pid)
                os.kill(seen[0], signal.SIGKILL)
                return
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    verdict = judge.verdict(WAITS, Opponent("eager"), replace(REQUEST, deadline_seconds=30.0))
    killer.join()
    assert seen, "there was a process to kill"
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.died), verdict.explanation
    assert verdict.seconds < 15, "its end was seen at once, not at the deadline"
    assert ("SIGKILL" if victim == "child" else "sandbox") in verdict.explanation
    assert honest(judge) == before
