"""One verdict in words: what was judged, stage by stage, how wrong it was, how fast."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autokernel.records import ErrorFigures, Outcome, Sanitized, Timing, Trial, Verdict
from autokernel.report import units

_STYLE = {Outcome.accepted: "bold green", Outcome.rejected: "bold red", Outcome.suspect: "bold yellow"}
_MARK = {"passed": ("passed", "green"), "failed": ("failed", "red"), "skipped": ("skipped", "dim")}


def judged(verdict: Verdict, trial: Trial | None = None, *, stages: bool = True) -> RenderableType:
    parts: list[RenderableType] = []
    if trial:
        parts.append(_decided(trial))
    if stages and verdict.stages:
        parts.append(_stages(verdict))
    parts += [Text(line) for line in _figures(verdict)]
    parts += [Text(f"warning: {line}", style="yellow") for line in verdict.warnings]
    parts.append(_outcome(verdict))
    return Group(*parts)


def _decided(trial: Trial) -> Text:
    return Text.assemble(
        (f"Experiment {trial.experiment}", "bold"),
        f" on {trial.task}, by {trial.proposer}: ",
        (trial.decision.value, "green" if trial.decision.value == "kept" else "default"),
        f" ({trial.reason})\n",
        f"{trial.description}\n" if trial.description else "",
        f"commit {trial.commit[:12]}, {trial.finished_at}\n",
    )


def _outcome(verdict: Verdict) -> Text:
    text = Text(verdict.verdict.value.upper(), style=_STYLE.get(verdict.verdict, "bold red"))
    if verdict.verdict is not Outcome.accepted:
        text.append(f" at {verdict.stage.value}: {verdict.reason.value}", style="bold")
    text.append(f"  ({verdict.device}, {verdict.isolation}, {verdict.seconds:.1f} s)", style="default not bold")
    if verdict.explanation:
        text.append(f"\n{verdict.explanation}", style="default not bold")
    return text


def _stages(verdict: Verdict) -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column()
    made.add_column()
    made.add_column(justify="right")
    made.add_column()
    for stage in verdict.stages:
        word, style = _MARK[stage.status]
        made.add_row(stage.name.value, Text(word, style=style), f"{stage.seconds:.1f} s", Text(stage.detail))
    return made


def _figures(verdict: Verdict) -> Iterable[str]:
    if verdict.error:
        yield _error(verdict.error)
    if verdict.timing:
        yield _time(verdict.timing)
    if verdict.kernels_launched:
        yield f"what a call runs: {', '.join(verdict.kernels_launched)}"
    if verdict.sanitizer:
        yield f"compute-sanitizer: {_sanitized(verdict.sanitizer)}"
    for name, timing in verdict.baselines.items():
        known = {"eager": "eager", "inductor": "torch.compile"}[name]
        yield f"against {known}: {units.times(timing.speedup)} {units.interval(timing.ci_low, timing.ci_high)}"


def _error(error: ErrorFigures) -> str:
    return (
        f"error: largest {units.error(error.max)} against float64, eager's own {units.error(error.eager_max)}; "
        f"{units.of_allowed(error.tolerance)}"
    )


def _sanitized(found: Sanitized) -> str:
    ran = f"{' and '.join(found.tools)} at {'; '.join(found.sizes)}" if found.tools else ""
    return ", ".join(filter(None, (ran, f"not run: {found.not_run}" if found.not_run else "")))


def _time(timing: Timing) -> str:
    """The interval is of the ratio, at the confidence that stands beside it."""
    sure = f"{100 * timing.confidence:g} %, {units.count(timing.pairs, 'pair')}{', confirmed' * timing.confirmed}"
    text = (
        f"time: {units.duration_us(timing.candidate_us)} against {units.duration_us(timing.incumbent_us)}, "
        f"{units.times(timing.speedup)} {units.interval(timing.ci_low, timing.ci_high)} ({sure})"
    )
    if timing.floor_us is not None:
        text += f"; floor {units.duration_us(timing.floor_us)}"
    if timing.pct_of_ceiling is not None:
        text += f"; {timing.pct_of_ceiling:.0f} % of the ceiling"
    return text
