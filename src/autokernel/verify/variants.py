"""Ways to run one model, each compiled and warmed before anything is timed: the baselines, and ours."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from autokernel.install import Winner
from autokernel.install.backend import FallbackWarning, Installed, install
from autokernel.install.compiling import BASELINES, Mode, baseline
from autokernel.profile.state import clone, keeping_buffers
from autokernel.verify.observe import observe
from autokernel.workload import Case, Workload

Say = Callable[[str], None]
_WARM_CALLS = 2
_MOST_REPEATS = 10  # a case met very often is not timed more often than this within one call


@dataclass
class Log:
    """What is said while it runs, and the part of it that a reader of the proof must know."""

    say: Say
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.say(line)
        self.notes.append(line)


@dataclass(frozen=True)
class Variant:
    """A way to run the model. `once` runs all cases, each as often as its weight says; it is what is timed."""

    name: str
    mode: Mode
    model: Callable[..., Any]
    once: Callable[[], None]


def baselines(workload: Workload, modes: Sequence[Mode], log: Log, enough: Callable[[Mode], bool]) -> list[Variant]:
    """Eager, and the compiled baselines that this model allows and the time is enough for (`enough(mode)`)."""
    found = [_warm(Variant("eager", "eager", workload.model, _once(workload.model, workload)), log.say)]
    for mode in modes:
        name = BASELINES[mode]
        if not enough(mode):
            log.note(f"the baseline {name} is left out: too little time is left to compile it")
            continue

        def build(mode: Mode = mode, name: str = name) -> Variant:
            # our kernels' graphs are compiled a shape at a time; symbolic sizes would be a weaker baseline
            compiled = baseline(workload.model, mode, dynamic=False if len(workload.cases) > 1 else None)
            return _warm(Variant(name, mode, compiled, _once(compiled, workload)), log.say)

        try:
            found.append(_twice(build, log.say))
        except Exception as error:  # whatever a compiler raises: the user could not run this baseline either
            log.note(f"the baseline {name} does not work for this model: {first_line(error)}")
    return found


def ours(workload: Workload, winners: Sequence[Winner], mode: Mode, name: str, say: Say) -> Variant:
    """The model with `winners`, the rest compiled in `mode`. Raises what compiling or a kernel raises."""

    def build() -> Variant:
        installed = install(workload.model, winners, mode)
        return _warm(Variant(name, mode, installed, _once(installed, workload)), say)

    return _twice(build, say)


def installed(variant: Variant) -> Installed:
    """The installed model behind one of our variants."""
    assert isinstance(variant.model, Installed)
    return variant.model


def weighted(cases: Sequence[Case]) -> list[tuple[Case, int]]:
    """Each case with its calls in one timed pass, in proportion to the weights (the rarest once)."""
    least = min((case.weight for case in cases if case.weight > 0), default=1.0)
    return [(case, min(_MOST_REPEATS, max(1, round(case.weight / least)))) for case in cases]


def _once(model: Callable[..., Any], workload: Workload) -> Callable[[], None]:
    plan = weighted(workload.cases)
    kept = _leaves_traces(workload)

    def once() -> None:
        with torch.no_grad():
            for case, repeats in plan:
                for _ in range(repeats):
                    if kept:
                        with keeping_buffers(workload.model):
                            args, kwargs = clone((case.args, case.kwargs))
                            model(*args, **kwargs)
                    else:
                        model(*case.args, **case.kwargs)

    return once


def _leaves_traces(workload: Workload) -> bool:
    """Whether a call changes inputs or buffers: then each timed call, of every variant alike, has copies of its own."""
    return any(
        name.startswith(("input", "buffer "))
        for case in workload.cases
        for name in observe(workload.model, workload.model, case)
    )


def _twice(build: Callable[[], Variant], say: Say) -> Variant:
    """Inductor's builds share a cache folder with every process of the user, and may fail when two meet in it."""
    try:
        return build()
    except Exception as error:  # the second try raises it again if it was no accident
        say(f"trying again: {first_line(error)}")
        return build()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Inductor's tables of autotuning on stderr, and our own warnings: verification reports what they say."""
    from torch._inductor import config, select_algorithm

    printing, select_algorithm.PRINT_AUTOTUNE = select_algorithm.PRINT_AUTOTUNE, False
    try:
        with warnings.catch_warnings(), config.patch(max_autotune_report_choices_stats=False):
            warnings.simplefilter("ignore", FallbackWarning)
            warnings.filterwarnings("ignore", module=r"torch\._inductor\..*")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printing


def _warm(variant: Variant, say: Say) -> Variant:
    begin = time.monotonic()
    with _quietly():
        for _ in range(_WARM_CALLS):
            variant.once()
    seconds = time.monotonic() - begin
    if seconds > 2:
        say(f"{variant.name}: compiled in {seconds:.0f} s")
    return variant


def first_line(error: BaseException) -> str:
    """An exception as one short line: its class, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
