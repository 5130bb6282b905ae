"""The proof of a run: the whole model with its winners against every baseline, and its outputs against float64.

Order: baselines, quick comparison → our winners compiled the way the best compiled baseline was, and in plain eager,
the faster of the two → outputs → each winner taken out in turn → what doesn't pay is removed → the final set measured
again with fresh pairs, which are the only ones reported. "gain" needs the lower 95 % bound above 1 against *every*
baseline, right outputs, and kernels that were seen to run. Anything else recommends the best baseline.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from autokernel.install import Winner
from autokernel.install.compiling import BASELINES, MODES, Mode
from autokernel.profile.state import clone, keeping_buffers
from autokernel.records import BaselineRow, Proof, WinnerRow
from autokernel.verify.leave_out import InModel, leave_out
from autokernel.verify.outputs import Check, check_outputs
from autokernel.verify.speed import Rounds, measure
from autokernel.verify.variants import Log, Say, Variant, baselines, first_line, installed, ours
from autokernel.workload import Workload

OURS = "autokernel"

# parts of the budget
_QUICK, _FINAL, _OUTPUTS = 0.04, 0.2, 0.2
_ROUNDS = 40  # of the final measurement, at most: more would narrow the interval below what the drift allows


@dataclass
class _Clock:
    budget: float
    begin: float = field(default_factory=time.monotonic)

    def left(self, reserve: float = 0.0) -> float:
        """Seconds left, less a part (of the whole) that later steps need."""
        return self.begin + self.budget * (1 - reserve) - time.monotonic()


def verify(
    workload: Workload,
    winners: Sequence[Winner],
    *,
    modes: Sequence[Mode] = ("default", "max-autotune"),
    budget_seconds: float = 120.0,
    say: Say = lambda _: None,
) -> Proof:
    """Prove, or fail to prove, that the winners make the model faster. Takes about `budget_seconds`.

    `modes`: the compiled baselines besides eager. `say` is given a line for each step. Compilations can't be cut short;
    when time runs out, steps are left out and `notes` name them. Raises what the user's own model raises.
    """
    clock = _Clock(budget_seconds)
    log = Log(say)
    with torch.no_grad():
        known = baselines(workload, modes, log, lambda mode: clock.left(0.5) > 0)
        quick = measure(_calls(known), seconds=_QUICK * budget_seconds, min_rounds=4)
        best = next(variant for variant in known if variant.name == quick.fastest([one.name for one in known]))
        say(f"best baseline: {best.name}, {quick.ms(best.name):.3g} ms")
        if not winners:
            log.notes.append("no kernel was kept; ratios are against the best baseline")
            return _without_winners(known, clock, log.notes)
        chosen = _choose(workload, winners, known, quick, clock, log)
        if chosen is None or not any(installed(chosen).replaced.values()):
            log.notes.append("no region of the compiled model matches a kernel; ratios are against the best baseline")
            rows = tuple(_row(winner, 0, 0, InModel(None), False, _why(chosen, winner)) for winner in winners)
            return _without_winners(known, clock, log.notes, rows)
        return _prove(workload, list(winners), known, chosen, clock, log)


def kept(proof: Proof, winners: Sequence[Winner]) -> list[Winner]:
    """The winners that the proof leaves in the model; none unless there is a gain."""
    if proof.result != "gain":
        return []
    names = {row.task for row in proof.winners if row.kept}
    return [winner for winner in winners if winner.task.id in names]


def mode_of(proof: Proof) -> Mode:
    """The mode for `install` that the proof recommends: ours, or the best baseline's where there is no gain."""
    name = proof.compiled_as if proof.result == "gain" else proof.best_baseline
    return next(mode for mode in MODES if BASELINES[mode] == name)


def _choose(
    workload: Workload, winners: Sequence[Winner], known: Sequence[Variant], quick: Rounds, clock: _Clock, log: Log
) -> Variant | None:
    """Our winners in the mode of the best compiled baseline and in eager: the faster one, by interleaved blocks."""
    compiled = [variant for variant in known if variant.mode != "eager"]
    modes: list[Mode] = ["eager"]
    if compiled:
        fastest = quick.fastest([variant.name for variant in compiled])
        modes.append(next(variant.mode for variant in compiled if variant.name == fastest))
    built = []
    for mode in modes:
        try:
            built.append(ours(workload, winners, mode, f"ours, {BASELINES[mode]}", log.say))
        except Exception as error:  # a compiler's refusal must not end the proof while another mode may work
            log.note(f"our kernels can't be installed with {BASELINES[mode]}: {first_line(error)}")
    if not built:
        return None
    if len(built) == 1:
        return built[0]
    rounds = measure(_calls(built), seconds=_QUICK * clock.budget, min_rounds=4)
    name = rounds.fastest([variant.name for variant in built])
    log.say(", ".join(f"{variant.name}: {rounds.ms(variant.name):.3g} ms" for variant in built))
    return next(variant for variant in built if variant.name == name)


def _prove(
    workload: Workload,
    winners: list[Winner],
    known: Sequence[Variant],
    chosen: Variant,
    clock: _Clock,
    log: Log,
) -> Proof:
    honest = {variant.name: variant.model for variant in known}
    seed = secrets.randbits(31)
    check = check_outputs(workload, chosen.model, honest, seed=seed, seconds=_OUTPUTS * clock.budget)
    log.say(f"outputs: {_verdict(check)}")
    effects: dict[str, InModel] = {}
    if check.passed:
        effects = leave_out(workload, winners, chosen, left=lambda: clock.left(_FINAL), say=log.say)
    staying = [winner for winner in winners if effects.get(winner.task.id, InModel(None)).pays]
    final = chosen
    if check.passed and staying and len(staying) < len(winners):
        final, staying = _rebuilt(workload, winners, staying, chosen, log)
        check = check_outputs(workload, final.model, honest, seed=seed + 1, seconds=_OUTPUTS * clock.budget)
        log.say(f"outputs of the final set: {_verdict(check)}")
    engaged = _engaged(workload, final)
    log.say(f"final measurement against {', '.join(variant.name for variant in known)}")
    rounds = measure(_calls([*known, final]), seconds=max(clock.left(), 0.0), min_rounds=8, max_rounds=_ROUNDS)
    rows = tuple(_winner_row(winner, final, engaged, effects, winner in staying) for winner in winners)
    table = _baseline_rows(known, rounds, final.name)
    result = _result(check, table, rows, final)
    notes = (*log.notes, *_not_shown(known, rows), *check.notes, *_skipped(final))
    best = rounds.fastest([variant.name for variant in known])
    return Proof(
        result=result,
        recommended=OURS if result == "gain" else best,
        compiled_as=BASELINES[final.mode],
        ours_ms=rounds.ms(final.name),
        pairs=rounds.pairs,
        best_baseline=best,
        baselines=table,
        outputs=tuple(check.rows),
        winners=rows,
        fallbacks=installed(final).fallbacks,
        notes=notes,
        finished_at=_now(),
    )


def _result(
    check: Check, table: Sequence[BaselineRow], rows: Sequence[WinnerRow], final: Variant
) -> Literal["gain", "no gain", "failed"]:
    if not check.passed:
        return "failed"
    if any(installed(final).replaced.values()) and not any(row.engaged for row in rows):
        return "failed"
    compiled = any(row.name != BASELINES["eager"] for row in table)
    faster = any(row.kept and row.engaged for row in rows) and all(row.ci_low > 1 for row in table)
    return "gain" if compiled and faster and not check.uncompared else "no gain"


def _not_shown(known: Sequence[Variant], rows: Sequence[WinnerRow]) -> list[str]:
    """What a reader could take for shown, and was not."""
    notes = []
    if all(variant.mode == "eager" for variant in known):
        notes.append("torch.compile wasn't measured; without a compiled baseline there is no gain to speak of")
    staying = [row for row in rows if row.kept]
    unmeasured = sum(row.in_model is None for row in staying)
    if unmeasured:
        notes.append(f"{unmeasured} of {len(staying)} kept kernels were not measured alone in the model")
    return notes


def _rebuilt(
    workload: Workload, winners: list[Winner], staying: list[Winner], chosen: Variant, log: Log
) -> tuple[Variant, list[Winner]]:
    """The model with those that pay; with all of them where that one can't be built."""
    try:
        return ours(workload, staying, chosen.mode, "ours, final", log.say), staying
    except Exception as error:  # the set that was measured is still there
        log.note(f"without the kernels that don't pay the model can't be built, all stay: {first_line(error)}")
        return chosen, winners


def _engaged(workload: Workload, variant: Variant) -> dict[str, int]:
    total: dict[str, int] = {}
    for case in workload.cases:
        args, kwargs = clone((case.args, case.kwargs))
        with keeping_buffers(workload.model):
            found = installed(variant).engaged(*args, **kwargs)
        for task, count in found.items():
            total[task] = total.get(task, 0) + count
    return total


def _winner_row(
    winner: Winner, final: Variant, engaged: dict[str, int], effects: dict[str, InModel], stays: bool
) -> WinnerRow:
    task = winner.task.id
    places, calls = installed(final).replaced.get(task, 0), engaged.get(task, 0)
    effect = effects.get(task, InModel(None))
    note = effect.note
    if stays and not calls:
        note = _why(final, winner) if not places else "it was put into the graph but not seen to run"
    return _row(winner, places, calls, effect, stays and calls > 0, note)


def _row(winner: Winner, places: int, engaged: int, effect: InModel, stays: bool, note: str) -> WinnerRow:
    gain = effect.gain
    return WinnerRow(
        task=winner.task.id,
        title=winner.task.title,
        occurrences=places,
        engaged=engaged,
        speedup_alone=winner.speedup_alone,
        in_model=gain.ratio if gain else None,
        ci_low=gain.low if gain else None,
        ci_high=gain.high if gain else None,
        kept=stays,
        note=note,
    )


def _why(variant: Variant | None, winner: Winner) -> str:
    left = installed(variant).left if variant is not None else []
    reasons = [reason for reason in left if reason.startswith(f"{winner.task.id} ")]
    return reasons[0] if reasons else "no region of the compiled graph has its fingerprint and shapes"


def _baseline_rows(known: Sequence[Variant], rounds: Rounds, against: str) -> tuple[BaselineRow, ...]:
    rows = []
    for variant in known:
        found = rounds.ratio(variant.name, against)
        ms = rounds.ms(variant.name)
        rows.append(BaselineRow(name=variant.name, ms=ms, ratio=found.ratio, ci_low=found.low, ci_high=found.high))
    return tuple(rows)


def _without_winners(
    known: Sequence[Variant], clock: _Clock, notes: Sequence[str], rows: tuple[WinnerRow, ...] = ()
) -> Proof:
    """Only the baselines, against the best of them."""
    rounds = measure(
        _calls(known), seconds=min(_FINAL * clock.budget, max(clock.left(), 0.0)), min_rounds=8, max_rounds=_ROUNDS
    )
    best = rounds.fastest([variant.name for variant in known])
    return Proof(
        result="no gain",
        recommended=best,
        compiled_as=best,
        ours_ms=None,
        pairs=rounds.pairs,
        best_baseline=best,
        baselines=_baseline_rows(known, rounds, best),
        outputs=(),
        winners=rows,
        notes=tuple(notes),
        finished_at=_now(),
    )


def _calls(variants: Sequence[Variant]) -> dict[str, Callable[[], None]]:
    return {variant.name: variant.once for variant in variants}


def _skipped(variant: Variant) -> list[str]:
    return [f"{part.what} was left as it is: {part.reason}" for part in installed(variant).skipped]


def _verdict(check: Check) -> str:
    if check.passed:
        worst = max(row.worst for row in check.rows)
        return f"right, at most {worst:.2g} of the tolerance"
    bad = next((row for row in check.rows if not row.passed), None)
    return f"WRONG: {bad.name}, {bad.worst:.3g} × the tolerance" if bad else "WRONG: nothing could be compared"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
