"""The report of a run: where time went, what was tried and kept, end to end, what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autokernel.records import AttentionRow, BaselineRow, Proof, WinnerRow
from autokernel.report import units
from autokernel.report.usefile import use_lines
from autokernel.report.view import RunView, Standing, model_gain, standings
from autokernel.report.where import profile_table, short, table

_RESULT_STYLE = {"gain": "bold green", "no gain": "bold yellow", "failed": "bold red"}


def summary(view: RunView) -> RenderableType:
    """Everything there is so far, in the order of the work; what has not happened yet is said, not left out."""
    parts: list[RenderableType] = []
    if view.profile:
        parts += [profile_table(view.profile, lines=False), Text()]
    parts += [*_tried(view), Text()]
    if view.proof:
        parts += [*_end_to_end(view.proof), *_result(view, view.proof)]
    else:
        parts += list(_unfinished(view))
    return Group(*parts)


def _tried(view: RunView) -> Iterable[RenderableType]:
    lines = standings(view)
    tried = [line for line in lines if line.experiments]
    yield Text.assemble(
        ("What was tried", "bold"),
        f": {units.count(len(view.trials), 'experiment')} on {units.count(len(tried), 'task')}, "
        f"{sum(line.correct for line in lines)} right, {sum(line.kept for line in lines)} kept\n",
    )
    if tried:
        yield _standings(tried, {row.task: row for row in view.proof.winners} if view.proof else None)
        yield Text(
            "alone: speedup over the first incumbent (the faster of eager and Inductor); in the model: the model's "
            "time without the kernel / with it.",
            style="dim",
        )
    yield from _noise(view)
    if len(lines) > len(tried):
        yield Text(f"Not tried: {', '.join(line.task for line in lines if not line.experiments)}", style="dim")


def _noise(view: RunView) -> Iterable[RenderableType]:
    """The same kernel against itself: what it asked of a gain, and whether it claimed one."""
    if not view.trials_of_same:
        return
    last = view.trials_of_same[-1]
    yield Text(
        f"The same against itself, {units.count(len(view.trials_of_same), 'time')}: a gain must be at least "
        f"{100 * last.min_gain_after:.2g} %.",
        style="dim",
    )
    for trial in view.trials_of_same:
        if trial.claimed:
            yield Text(
                f"{trial.task} measured {units.times(trial.timing.speedup)} "
                f"{units.interval(trial.timing.ci_low, trial.timing.ci_high)} against itself: this device is noisier "
                "than its pairs tell, so the least gain was widened.",
                style="yellow",
            )


def _standings(tried: list[Standing], winners: dict[str, WinnerRow] | None) -> Table:
    made = table("task", "tried", "kept", "alone", "in the model")
    made.columns[-1].justify = made.columns[-2].justify = "left"
    for line in tried:
        made.add_row(
            short(line.task),
            str(line.experiments),
            str(line.kept) if line.kept else "[dim]–[/dim]",
            units.gain(line.gain),
            _in_model(line, winners),
        )
    return made


def _in_model(line: Standing, winners: dict[str, WinnerRow] | None) -> str:
    if winners is None:
        return "[dim]not verified yet[/dim]" if line.kept else ""
    row = winners.get(line.task)
    if row is None:
        return "[dim]not verified[/dim]" if line.kept else ""
    figure = f"{units.times(row.in_model)} {units.interval(row.ci_low, row.ci_high)}".rstrip()
    if row.kept:
        return f"[green]{figure}[/green]" if row.in_model else "[green]kept[/green]"
    note = row.note or "does not pay"
    return f"[yellow]taken out[/yellow] {figure if row.in_model else escape(note)}"


def _end_to_end(proof: Proof) -> Iterable[RenderableType]:
    ours = "no kernel stayed in" if proof.ours_ms is None else f"{units.duration_us(1e3 * proof.ours_ms)} a call"
    yield Text.from_markup(
        f"[bold]End to end[/bold]: {ours}, {units.count(proof.pairs, 'interleaved pair')}, "
        f"compiled as {proof.compiled_as}\n"
    )
    made = table("against", "its time", "ours is", "95 % interval", "")
    made.columns[-1].justify = "left"
    for row in proof.baselines:
        best = " (best)" if row.name == proof.best_baseline else ""
        made.add_row(
            short(row.name + best),
            units.duration_us(1e3 * row.ms),
            units.times(row.ratio) if proof.ours_ms is not None else "–",
            units.interval(row.ci_low, row.ci_high) if proof.ours_ms is not None else "–",
            _in_words(row) if proof.ours_ms is not None else "",
        )
    yield made
    yield Text()
    yield from _outputs(proof)
    if proof.attention is not None:
        yield _attention(proof.attention)
    for note in proof.notes:
        yield Text(f"note: {note}", style="dim")


def _attention(row: AttentionRow) -> Text:
    """What was done to attention that stays in the graph, and whether it pays."""
    text = Text(f"Attention: {'; '.join(row.sites) or 'left as it is'} – ")
    if row.in_model is not None:
        text.append(
            f"{units.times(row.in_model)} {units.interval(row.ci_low, row.ci_high)} in the model, ".replace("  ", " ")
        )
    text.append("kept" if row.kept else "taken out", style="green" if row.kept else "yellow")
    if row.note:
        text.append(f" ({row.note})")
    return text


def _in_words(row: BaselineRow) -> str:
    if row.ci_low > 1:
        return "[green]faster[/green]"
    return "[red]slower[/red]" if row.ci_high < 1 else "[yellow]level[/yellow]"


def _outputs(proof: Proof) -> Iterable[RenderableType]:
    for row in proof.outputs:
        text = Text(f"Output {row.name} is ", style="default")
        text.append("right" if row.passed else "WRONG", style="green" if row.passed else "bold red")
        words = f"largest error {units.error(row.max_error)} against float64, eager's own "
        words += units.error(row.eager_max_error)
        if row.reference == "eager":
            words = f"largest difference from eager {units.error(row.max_error)}"
        text.append(f": {words}; {units.of_allowed(row.worst)}", style="default not bold")
        if row.top1_agreement is not None:
            text.append(f"; same top-1 {units.percent(row.top1_agreement)}", style="default not bold")
        yield text
    if proof.fallbacks:
        yield Text(f"{units.count(proof.fallbacks, 'call')} fell back to the original code", style="yellow")


def _result(view: RunView, proof: Proof) -> Iterable[RenderableType]:
    kept = [row for row in proof.winners if row.kept]
    text = Text(f"\nResult: {proof.result}", style=_RESULT_STYLE[proof.result])
    calls = sum(row.engaged for row in kept)
    if kept:
        text.append(
            f" – {units.count(len(kept), 'kernel')} in the model, seen to run {units.count(calls, 'time')} in one call",
            style="default not bold",
        )
    elif proof.result == "gain":
        text.append(" – by rewritten attention alone, no kernel of ours stays", style="default not bold")
    text.append(f"\nRecommended: {proof.recommended}", style="default")
    yield text
    since = sum(trial.finished_at > proof.finished_at for trial in view.trials)
    if since and view.path:
        yield Text(
            f"\n{units.count(since, 'experiment')} came after this verification. To prove them too:", style="yellow"
        )
        yield _to_copy(f"autokernel verify {shlex.quote(str(view.path))}")
    if view.path and proof.result != "failed":
        yield Text("\nTo use it:" if proof.result == "gain" else "\nThe same lines give you the recommended baseline:")
        yield _to_copy(*use_lines(view.path))


def _unfinished(view: RunView) -> Iterable[RenderableType]:
    yield Text(_best_so_far(view), style="bold")
    if view.owner:
        yield Text(f"The run goes on ({view.owner}); nothing is verified yet.")
    elif view.path:
        yield Text("Not finished and not verified. Go on with:")
        yield _to_copy(f"autokernel resume {shlex.quote(str(view.path))}")


def _to_copy(*lines: str) -> Text:
    """Lines that the terminal may wrap but we never break: they are copied."""
    return Text("\n".join(f"    {line}" for line in lines), style="cyan", no_wrap=True, overflow="ignore")


def _best_so_far(view: RunView) -> str:
    gains = {line.task: line.gain.speedup for line in standings(view) if line.gain and line.gain.speedup > 1}
    if not gains:
        return "Best so far: nothing that beats PyTorch yet"
    estimate = model_gain(view.profile, gains)
    model = f", worth {units.times(estimate)} for the model by estimate" if estimate else ""
    return f"Best so far: {units.count(len(gains), 'kernel')} ahead of PyTorch{model}"
