"""Ways to run one model, each compiled and warmed before anything is timed: the baselines, and ours."""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from autokernel.errors import NotGraphable
from autokernel.install import Winner
from autokernel.install.backend import FallbackWarning, Installed, install
from autokernel.install.compiling import BASELINES, GRAPHS, Mode, baseline
from autokernel.profile.state import clone, keeping_buffers
from autokernel.verify.device import cuda_devices, wait_for
from autokernel.verify.observe import fresh, observe
from autokernel.verify.outputs import agree
from autokernel.workload import Case, Workload

Say = Callable[[str], None]
_WARM_CALLS = 2
_WARM_GRAPH_CALLS = 4  # one that runs, one that records, and two that replay
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
    seconds: float = 0.0  # that building it took


def baselines(workload: Workload, modes: Sequence[Mode], log: Log, enough: Callable[[], bool]) -> list[Variant]:
    """Eager, and the baselines `modes` that this model allows and the time is enough for, in the order given."""
    found = [_warm(Variant("eager", "eager", workload.model, _once(workload.model, workload)), workload, log.say)]
    for mode in modes:
        name = BASELINES[mode]
        if not enough():
            log.note(f"the baseline {name} is left out (not measured): too little time is left to compile it")
            continue
        log.say(f"baseline {name}: compiling")

        def build(mode: Mode = mode, name: str = name) -> Variant:
            # our kernels' graphs are compiled a shape at a time; symbolic sizes, which Dynamo also takes over from
            # other models of the process, would be a weaker baseline
            compiled = baseline(workload.model, mode, dynamic=False)
            if mode == "eager-graphs":
                _refuse_other_values(workload, compiled)
            return _warm(Variant(name, mode, compiled, _once(compiled, workload)), workload, log.say)

        try:
            found.append(_twice(build, log.say))
        except Exception as error:  # whatever a compiler raises: the user could not run this baseline either
            log.note(f"the baseline {name} does not work for this model: {first_line(error)}")
    return found


def _refuse_other_values(workload: Workload, graphs: Callable[..., Any]) -> None:
    """Replays must follow the inputs: what the host keeps or computes from values is frozen in a graph."""
    model = workload.model
    with torch.random.fork_rng(devices=cuda_devices(workload)):
        for number, case in enumerate(workload.cases):
            for inputs in (case, fresh(case, number)):
                torch.manual_seed(number)
                eager = observe(model, model, inputs)
                torch.manual_seed(number)
                if not agree(eager, observe(graphs, model, inputs)):
                    raise NotGraphable(detail="replays give other outputs than eager")


def ours(
    workload: Workload, winners: Sequence[Winner], mode: Mode, name: str, say: Say, attention: bool = False
) -> Variant:
    """The model with `winners`, and with `attention` rewritten attention, the rest compiled in `mode`.

    Raises what compiling or a kernel raises, and NotGraphable.
    """

    say(f"{name}: installing {len(winners)} kernel(s){' and attention' if attention else ''}")

    def build() -> Variant:
        # in eager-graphs users get copies of the outputs; elsewhere what torch itself would give them
        model = install(workload.model, winners, mode, attention=attention, keep_outputs=mode == "eager-graphs")
        variant = _warm(Variant(name, mode, model, _once(model, workload)), workload, say)
        if mode == "eager-graphs" and model.fallbacks:
            raise NotGraphable(detail="calls with our kernels fell back to the original")
        return variant

    begin = time.monotonic()
    variant = _twice(build, say)
    return dataclasses.replace(variant, seconds=time.monotonic() - begin)


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
    except (NotGraphable, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the second try raises it again if it was no accident
        say(f"trying again: {first_line(error)}")
        return build()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Inductor's tables of autotuning on stderr, and our own warnings: verification reports what they say."""
    from torch._inductor import config, select_algorithm

    printing, select_algorithm.PRINT_AUTOTUNE = select_algorithm.PRINT_AUTOTUNE, False
    log = logging.getLogger(select_algorithm.__name__)  # an error for every choice that doesn't fit the chip
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), config.patch(max_autotune_report_choices_stats=False):
            warnings.simplefilter("ignore", FallbackWarning)
            warnings.filterwarnings("ignore", module=r"torch\._inductor\..*")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printing
        log.setLevel(level)


def _warm(variant: Variant, workload: Workload, say: Say) -> Variant:
    begin = time.monotonic()
    wait = wait_for(workload)
    with _quietly():
        for _ in range(_WARM_GRAPH_CALLS if variant.mode in GRAPHS else _WARM_CALLS):
            variant.once()
        if wait is not None:
            wait()  # what a kernel does wrong on the device is raised here, under the name of its variant
    seconds = time.monotonic() - begin
    if seconds > 2:
        say(f"{variant.name}: compiled in {seconds:.0f} s")
    return variant


def first_line(error: BaseException) -> str:
    """An exception as one short line: its class, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
