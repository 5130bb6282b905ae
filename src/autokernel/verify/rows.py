"""The rows of a proof, and its notes, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autokernel.install import Winner
from autokernel.install.compiling import UNCOMPILED
from autokernel.records import AttentionRow, BaselineRow, WinnerRow
from autokernel.verify.leave_out import ATTENTION, InModel
from autokernel.verify.outputs import Check
from autokernel.verify.speed import Rounds
from autokernel.verify.variants import Variant, installed


def winner_row(
    winner: Winner, final: Variant, engaged: Mapping[str, int], effects: Mapping[str, InModel], stays: bool
) -> WinnerRow:
    """A winner that was installed: it is kept when it stays and was seen to run."""
    task = winner.task.id
    places, calls = installed(final).replaced.get(task, 0), engaged.get(task, 0)
    effect = effects.get(task, InModel(None))
    note = effect.note
    if stays and not calls:
        note = _why(final, winner) if not places else "it was put into the graph but not seen to run"
    return _row(winner, places, calls, effect, stays and calls > 0, note)


def left_row(winner: Winner, variant: Variant | None) -> WinnerRow:
    """A winner that found no place in the model."""
    return _row(winner, 0, 0, InModel(None), False, _why(variant, winner))


def attention_row(
    measured: Variant, final: Variant, effects: Mapping[str, InModel], stays: bool
) -> AttentionRow | None:
    """The rewritten attention of the variant that was measured; None where there was none."""
    sites = installed(measured).attention
    if not sites:
        return None
    effect = effects.get(ATTENTION, InModel(None))
    gain = effect.gain
    return AttentionRow(
        sites=sites,
        in_model=gain.ratio if gain else None,
        ci_low=gain.low if gain else None,
        ci_high=gain.high if gain else None,
        kept=stays and bool(installed(final).attention),
        note=effect.note,
    )


def baseline_rows(known: Sequence[Variant], rounds: Rounds, against: str) -> tuple[BaselineRow, ...]:
    rows = []
    for variant in known:
        found = rounds.ratio(variant.name, against)
        measured = {"ms": rounds.ms(variant.name), "ratio": found.ratio, "ci_low": found.low, "ci_high": found.high}
        rows.append(BaselineRow(name=variant.name, pairs=found.pairs, **measured))
    return tuple(rows)


def not_shown(known: Sequence[Variant], rows: Sequence[WinnerRow], attention: AttentionRow | None) -> list[str]:
    """What a reader could take for shown, and was not."""
    notes = []
    if all(variant.mode in UNCOMPILED for variant in known):
        notes.append("torch.compile wasn't measured; without a compiled baseline there is no gain to speak of")
    staying = [row for row in rows if row.kept]
    unmeasured = sum(row.in_model is None for row in staying)
    if unmeasured:
        notes.append(f"{unmeasured} of {len(staying)} kept kernels were not measured alone in the model")
    if attention is not None and attention.kept and attention.in_model is None:
        notes.append("the rewritten attention was not measured alone in the model")
    return notes


def skipped_notes(variant: Variant) -> list[str]:
    return [f"{part.what} was left as it is: {part.reason}" for part in installed(variant).skipped]


def outputs_in_words(check: Check) -> str:
    if check.passed:
        worst = max(row.worst for row in check.rows)
        return f"right, at most {worst:.2g} of the tolerance"
    bad = next((row for row in check.rows if not row.passed), None)
    return f"WRONG: {bad.name}, {bad.worst:.3g} × the tolerance" if bad else "WRONG: nothing could be compared"


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
