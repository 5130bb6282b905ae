"""The judge tried on this machine: every cheat, its honest twin, every odd but honest kernel, as kernels of a run.

An honest kernel goes first: where that is refused, something is wrong with the machine, and the rest would say nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autokernel.testing.cheaters import CHEATS, CUDA_CHEATS, CUDA_ODD, ODD, Case, reference

if TYPE_CHECKING:
    from autokernel.judge.judge import Judge
    from autokernel.judge.sandbox import Sandbox
    from autokernel.records import Ceilings, Verdict

DEADLINE = 6.0  # seconds for a step of the child: what hangs takes that long
NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """One case. `as_expected` is None for a case that was not run, and `reason` says why."""

    name: str
    expected: str
    verdict: str
    stage: str
    reason: str
    seconds: float
    as_expected: bool | None

    def as_json(self) -> dict[str, object]:
        names = ("name", "expected", "verdict", "stage", "reason", "seconds")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found. `isolation`: bubblewrap or plain."""

    device: str
    isolation: str
    cases: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return all(case.as_expected is not False for case in self.cases)

    def as_json(self) -> dict[str, object]:
        return {"cases": [case.as_json() for case in self.cases]}


def self_test(
    device: str = "cpu",
    isolation: Literal["auto", "bubblewrap", "plain"] = "auto",
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> SelfTest:
    """Run all cases for a device ("cpu", "cuda:N"). `told` hears of each as it ends. Takes a minute or several.

    Raises SandboxUnavailable, SandboxDied, NoCompiler, DeviceUnavailable.
    """
    from autokernel.judge.bench import open_sandbox

    found: list[Outcome] = []
    with open_sandbox(isolation, device=device, threads=1) as sandbox:  # a kernel's times must not depend on the load
        ceilings = None
        if device.startswith("cuda"):
            from autokernel.profile.ceilings import measure_ceilings

            sandbox.settle_transport()
            ceilings = measure_ceilings(device)
        for case, text, name in _texts(device.startswith("cuda")):
            outcome = _tried(sandbox, ceilings, case, text, name)
            told(outcome)
            found.append(outcome)
            if len(found) == 1 and not outcome.as_expected:
                break
        return SelfTest(device, sandbox.isolation, tuple(found))


def _texts(on_gpu: bool) -> Iterator[tuple[Case, str, str]]:
    """(case, text, name): an odd but honest kernel first, cheats each before its twin, a twin's text only once."""
    cheats, odd = (CUDA_CHEATS, CUDA_ODD) if on_gpu else (CHEATS, ODD)
    yield from ((case, case.source, case.name) for case in odd)
    seen: set[tuple[str, bool, str]] = set()
    for case in cheats:
        yield case, case.source, case.name
        if case.twin is not None and (case.task, case.library_calls, case.twin) not in seen:
            seen.add((case.task, case.library_calls, case.twin))
            yield case, case.twin, f"twin of: {case.name}"


def _tried(sandbox: Sandbox, ceilings: Ceilings | None, case: Case, text: str, name: str) -> Outcome:
    from autokernel.judge import Opponent, Request

    is_case = text is case.source
    expected = _expected(case) if is_case else "accepted"
    if is_case and case.bubblewrap and sandbox.isolation != "bubblewrap":
        return Outcome(name, expected, NOT_RUN, "-", "only bubblewrap shuts away what it reaches for", 0.0, None)
    level = case.level if is_case else "correctness"
    begin = time.monotonic()
    judge = _judge(sandbox, ceilings, case.task, case.library_calls)
    verdict = judge.verdict(text, Opponent("eager"), Request(level=level, deadline_seconds=DEADLINE))
    good = not case.wrong(verdict) if is_case else verdict.verdict.value == "accepted"
    return Outcome(name, expected, *_said(verdict), time.monotonic() - begin, good)


def _judge(sandbox: Sandbox, ceilings: Ceilings | None, task: str, library_calls: bool) -> Judge:
    """A judge with seeds of its own: what one case learns is nothing to the next."""
    import dataclasses

    from autokernel.judge.judge import Judge
    from autokernel.judge.seeds import Seeds
    from autokernel.records import Allow
    from autokernel.task.file import from_file

    loaded = from_file(Path(reference(task)), device=sandbox.device)
    allow = Allow(library_calls=library_calls)
    loaded = dataclasses.replace(loaded, task=loaded.task.model_copy(update={"allow": allow}))
    return Judge(loaded, sandbox, seeds=Seeds.fresh(), ceilings=ceilings)


def _said(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.verdict.value, verdict.stage.value, verdict.reason.value


def _expected(case: Case) -> str:
    if case.verdict.value == "accepted":
        return "accepted"
    outcome = f"{case.verdict.value} or suspect" if case.suspect else case.verdict.value
    return f"{outcome} at {'/'.join(case.stages)}: {'/'.join(case.reasons)}"
