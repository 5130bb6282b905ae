"""The proof of a run: the whole model with its winners against every baseline, and its outputs against float64.

Order: baselines, quick comparison → our winners compiled the way the best compiled baseline was, and in other ways that
may be faster (`_ways`), the fastest of them → outputs → each winner taken out in turn, and the rewritten attention →
what doesn't pay is removed → the final set measured again with fresh pairs, which are the only ones reported. "gain"
needs the lower 95 % bound above 1 against *every* baseline that was measured, right outputs, and something of ours that
stays: kernels that were seen to run, or rewritten attention. Anything else recommends the best baseline.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from autokernel.install import Winner
from autokernel.install.compiling import BASELINES, GRAPHS, MODES, TWINS, UNCOMPILED, Mode, modes_of, room_for_variants
from autokernel.profile.state import clone, keeping_buffers
from autokernel.records import AttentionRow, BaselineRow, Proof, WinnerRow
from autokernel.verify.device import cuda_devices, wait_for
from autokernel.verify.leave_out import ATTENTION, InModel, leave_out
from autokernel.verify.outputs import Check, check_outputs
from autokernel.verify.rows import (
    attention_row,
    baseline_rows,
    left_row,
    not_shown,
    outputs_in_words,
    skipped_notes,
    winner_row,
)
from autokernel.verify.speed import Rounds, measure
from autokernel.verify.variants import Log, Say, Variant, baselines, first_line, installed, ours
from autokernel.workload import Workload

OURS = "autokernel"

# parts of the budget
_QUICK, _FINAL, _OUTPUTS = 0.04, 0.25, 0.2
_ROUNDS = 40  # of the final measurement with every baseline, at most
_MORE_ROUNDS = 240  # of those that are close, in all, where time allows
_CLOSE = 1.05  # how much slower than the best baseline another one may be to be measured on, or installed as


@dataclass
class _Clock:
    budget: float
    begin: float = field(default_factory=time.monotonic)

    def left(self, reserve: float = 0.0) -> float:
        """Seconds left, less a part (of the whole) that later steps need."""
        return self.begin + self.budget * (1 - reserve) - time.monotonic()


@dataclass(frozen=True)
class _Job:
    """What every step needs. `attention`: whether attention that stays in the graph may be rewritten."""

    workload: Workload
    winners: list[Winner]
    attention: bool
    clock: _Clock
    log: Log

    @property
    def on_cuda(self) -> bool:
        return bool(cuda_devices(self.workload))

    def measure(self, variants: Sequence[Variant], seconds: float, min_rounds: int, max_rounds: int = 100) -> Rounds:
        calls = {variant.name: variant.once for variant in variants}
        wait = wait_for(self.workload)
        return measure(calls, seconds=seconds, min_rounds=min_rounds, max_rounds=max_rounds, wait=wait)


def verify(
    workload: Workload,
    winners: Sequence[Winner],
    *,
    modes: Sequence[Mode] | None = None,
    budget_seconds: float = 120.0,
    attention: bool | None = None,
    say: Say = lambda _: None,
) -> Proof:
    """Prove, or fail to prove, that the winners make the model faster. Takes about `budget_seconds`; on CUDA compiling
    the baselines comes on top.

    `modes`: the baselines besides eager (None: all that the device has, `modes_of`). `attention`: rewrite attention
    that stays in the graph, as a winner of its own (None: on CUDA only). `say` is given a line for each step.
    Compilations can't be cut short; when time runs out, steps are left out and `notes` name them. Raises what the
    user's own model raises.
    """
    clock = _Clock(budget_seconds)
    log = Log(say)
    on_cuda = bool(cuda_devices(workload))
    wanted = on_cuda if attention is None else attention
    job = _Job(workload, list(winners), wanted, clock, log)
    measured = modes_of("cuda" if on_cuda else "cpu") if modes is None else tuple(modes)
    with torch.no_grad(), room_for_variants():
        # on CUDA a baseline that is left out may be the best one, so there the budget begins when all are compiled
        known = baselines(workload, measured, log, lambda: on_cuda or clock.left(0.5) > 0)
        if on_cuda:
            clock.begin = time.monotonic()
        quick = job.measure(known, _QUICK * budget_seconds, 4)
        best = _named(known, quick.fastest([one.name for one in known]))
        say(f"best baseline: {best.name}, {quick.ms(best.name):.3g} ms")
        if not winners and not wanted:
            log.notes.append("no kernel was kept; ratios are against the best baseline")
            return _without_ours(job, known)
        chosen = _choose(job, known, quick)
        if chosen is None or not (any(installed(chosen).replaced.values()) or installed(chosen).attention):
            what = "no region of the compiled model matches a kernel" if winners else "no kernel was kept"
            log.notes.append(f"{what}; ratios are against the best baseline")
            return _without_ours(job, known, tuple(left_row(winner, chosen) for winner in winners))
        return _prove(job, known, chosen)


def kept(proof: Proof, winners: Sequence[Winner]) -> list[Winner]:
    """The winners that the proof leaves in the model; none unless there is a gain."""
    if proof.result != "gain":
        return []
    names = {row.task for row in proof.winners if row.kept}
    return [winner for winner in winners if winner.task.id in names]


def keeps_attention(proof: Proof) -> bool:
    """Whether the proof leaves rewritten attention in the model; never unless there is a gain."""
    return proof.result == "gain" and proof.attention is not None and proof.attention.kept


def mode_of(proof: Proof) -> Mode:
    """The mode for `install` that the proof recommends: ours, or the best baseline's where there is no gain."""
    name = proof.compiled_as if proof.result == "gain" else proof.best_baseline
    return next(mode for mode in MODES if BASELINES[mode] == name)


def _ways(known: Sequence[Variant], quick: Rounds, on_cuda: bool) -> list[Mode]:
    """The modes to install our winners in, most promising first.

    That of the fastest compiled baseline, always. On the CPU also eager. On CUDA the same with CUDA graphs where it is
    without (calls of our kernels cost more than Inductor's own where graphs don't hide them), the next compiled one
    that is close, and eager, or eager under CUDA graphs, where it is the fastest of all.
    """
    compiled = sorted((one for one in known if one.mode not in UNCOMPILED), key=lambda one: quick.ms(one.name))
    fastest = [one.mode for one in compiled[:1]]
    if not on_cuda:
        return ["eager", *fastest]
    twins = [TWINS[mode] for mode in fastest if mode not in GRAPHS and any(one.mode == TWINS[mode] for one in known)]
    close = [one.mode for one in compiled[1:] if quick.ms(one.name) <= _CLOSE * quick.ms(compiled[0].name)]
    best = _named(known, quick.fastest([variant.name for variant in known])).mode
    ways = [*fastest, *twins, *close[:1], *([best] if best in UNCOMPILED else [])]
    return list(dict.fromkeys(ways))


def _choose(job: _Job, known: Sequence[Variant], quick: Rounds) -> Variant | None:
    """Our winners installed in each of `_ways`; the fastest, by interleaved blocks."""
    built: list[Variant] = []
    longest = 0.0
    for mode in _ways(known, quick, job.on_cuda):
        if job.on_cuda and built and job.clock.left(_FINAL + _OUTPUTS) < 1.5 * longest:
            job.log.note(f"our kernels were not tried with {BASELINES[mode]}: too little time is left to compile it")
            continue
        begin = time.monotonic()
        variant = _built(job, mode)
        longest = max(longest, time.monotonic() - begin)
        if variant is not None:
            built.append(variant)
    if len(built) <= 1:
        return built[0] if built else None
    rounds = job.measure(built, _QUICK * job.clock.budget, 4)
    job.log.say(", ".join(f"{variant.name}: {rounds.ms(variant.name):.3g} ms" for variant in built))
    return _named(built, rounds.fastest([variant.name for variant in built]))


def _built(job: _Job, mode: Mode) -> Variant | None:
    """Our winners in one mode; without rewritten attention where that is what can't be installed; None: refused."""
    for attention in (True, False) if job.attention else (False,):
        if not job.winners and not attention:
            break
        try:
            return ours(job.workload, job.winners, mode, f"ours, {BASELINES[mode]}", job.log.say, attention)
        except Exception as error:  # a compiler's refusal must not end the proof while another mode may work
            what = "our kernels and rewritten attention" if attention else "our kernels"
            job.log.note(f"{what} can't be installed with {BASELINES[mode]}: {first_line(error)}")
    return None


def _prove(job: _Job, known: Sequence[Variant], chosen: Variant) -> Proof:
    clock, log = job.clock, job.log
    # the eager graph replays eager's kernels: no other honest run, and nothing that should widen a tolerance
    honest = {variant.name: variant.model for variant in known if variant.mode != "eager-graphs"}
    seed = secrets.randbits(31)
    check = check_outputs(job.workload, chosen.model, honest, seed=seed, seconds=_OUTPUTS * clock.budget)
    log.say(f"outputs: {outputs_in_words(check)}")
    effects: dict[str, InModel] = {}
    if check.passed:
        effects = leave_out(
            job.workload, job.winners, chosen, left=lambda: clock.left(_FINAL), say=log.say, took=chosen.seconds
        )
    staying = [winner for winner in job.winners if effects.get(winner.task.id, InModel(None)).pays]
    attention = bool(installed(chosen).attention) and effects.get(ATTENTION, InModel(None)).pays
    final = chosen
    dropped = len(staying) < len(job.winners) or attention != bool(installed(chosen).attention)
    if check.passed and dropped and (staying or attention):
        final, staying, attention = _rebuilt(job, chosen, staying, attention)
        check = check_outputs(job.workload, final.model, honest, seed=seed + 1, seconds=_OUTPUTS * clock.budget)
        log.say(f"outputs of the final set: {outputs_in_words(check)}")
    engaged = _engaged(job.workload, final)
    log.say(f"final measurement against {', '.join(variant.name for variant in known)}")
    rounds = _final_rounds(job, known, final)
    rows = tuple(winner_row(winner, final, engaged, effects, winner in staying) for winner in job.winners)
    rewritten = attention_row(chosen, final, effects, attention)
    table = baseline_rows(known, rounds, final.name)
    result = _result(check, table, rows, rewritten, final)
    best = rounds.fastest([variant.name for variant in known])
    return Proof(
        result=result,
        recommended=OURS if result == "gain" else best,
        compiled_as=BASELINES[final.mode],
        ours_ms=rounds.ms(final.name),
        pairs=len(rounds.seconds[best]),
        best_baseline=best,
        baselines=table,
        outputs=tuple(check.rows),
        winners=rows,
        attention=rewritten,
        fallbacks=installed(final).fallbacks,
        notes=(*log.notes, *not_shown(known, rows, rewritten), *check.notes, *skipped_notes(final)),
        finished_at=_now(),
    )


def _final_rounds(job: _Job, known: Sequence[Variant], final: Variant) -> Rounds:
    """Every baseline and ours; then more rounds of ours and of the baselines that are close to the best of them.

    What decides is the comparison with the best one, and a baseline that is far behind costs as much time as that.
    """
    rounds = job.measure([*known, final], max(job.clock.left() / 2, 0.0), 8, _ROUNDS)
    least = min(rounds.ms(variant.name) for variant in known)
    close = [variant for variant in known if rounds.ms(variant.name) <= _CLOSE * least]
    left = _MORE_ROUNDS - rounds.pairs
    if job.clock.left() <= 0:
        return rounds
    return rounds.followed_by(job.measure([*close, final], job.clock.left(), 0, left))


def _result(
    check: Check,
    table: Sequence[BaselineRow],
    rows: Sequence[WinnerRow],
    attention: AttentionRow | None,
    final: Variant,
) -> Literal["gain", "no gain", "failed"]:
    if not check.passed:
        return "failed"
    if any(installed(final).replaced.values()) and not any(row.engaged for row in rows):
        return "failed"
    compiled = any(row.name not in {BASELINES[mode] for mode in UNCOMPILED} for row in table)
    something = any(row.kept and row.engaged for row in rows) or (attention is not None and attention.kept)
    faster = something and all(row.ci_low > 1 for row in table)
    return "gain" if compiled and faster and not check.uncompared else "no gain"


def _rebuilt(job: _Job, chosen: Variant, staying: list[Winner], attention: bool) -> tuple[Variant, list[Winner], bool]:
    """The model with what pays; with all of it where that can't be built."""
    try:
        final = ours(job.workload, staying, chosen.mode, "ours, final", job.log.say, attention)
    except Exception as error:  # the set that was measured is still there
        job.log.note(f"without what doesn't pay the model can't be built, all stays: {first_line(error)}")
        return chosen, job.winners, bool(installed(chosen).attention)
    return final, staying, attention


def _engaged(workload: Workload, variant: Variant) -> dict[str, int]:
    total: dict[str, int] = {}
    for case in workload.cases:
        args, kwargs = clone((case.args, case.kwargs))
        with keeping_buffers(workload.model):
            found = installed(variant).engaged(*args, **kwargs)
        for task, count in found.items():
            total[task] = total.get(task, 0) + count
    return total


def _without_ours(job: _Job, known: Sequence[Variant], rows: tuple[WinnerRow, ...] = ()) -> Proof:
    """Only the baselines, against the best of them."""
    rounds = job.measure(known, min(_FINAL * job.clock.budget, max(job.clock.left(), 0.0)), 8, _ROUNDS)
    best = rounds.fastest([variant.name for variant in known])
    return Proof(
        result="no gain",
        recommended=best,
        compiled_as=best,
        ours_ms=None,
        pairs=rounds.pairs,
        best_baseline=best,
        baselines=baseline_rows(known, rounds, best),
        outputs=(),
        winners=rows,
        notes=tuple(job.log.notes),
        finished_at=_now(),
    )


def _named(variants: Sequence[Variant], name: str) -> Variant:
    return next(variant for variant in variants if variant.name == name)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
