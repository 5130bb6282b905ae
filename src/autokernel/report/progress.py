"""progress.png: every experiment, each task's best so far, and what that is worth to the whole model.

Above, each task's kernel against its first incumbent: a point an experiment, green when kept, grey when reverted, a
cross on the axis when it was wrong; the line is the best so far. Below, the model's speedup as Amdahl's law estimates
it from the profile; the figure that was measured end to end stands there once the run is verified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autokernel.records import Decision, Trial, Verdict
from autokernel.report import units
from autokernel.report.view import RunView, gain_of, model_gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEPT, REVERTED, WRONG, INK = "#1a9850", "#b8b8b8", "#d9a0a0", "#333333"
LINES = ("#2f6db3", "#c2571a", "#7b4fa3", "#008c8c", "#a8871b", "#b03a6b", "#5a6b7b", "#4f7d2a")
LABELS = 8


@dataclass
class Track:
    """One task over the experiments: where its best stood after each of its own."""

    task: str
    colour: str
    steps: list[tuple[int, float]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    best: float = 1.0


@dataclass(frozen=True)
class Point:
    experiment: int
    speedup: float  # against the task's first incumbent
    kept: bool


@dataclass
class History:
    """The trials replayed in order. `model` is the estimate for the whole model after each experiment."""

    tracks: dict[str, Track] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    model: list[tuple[int, float]] = field(default_factory=list)


def replay(view: RunView) -> History:
    """The history of a run. A trial without a speedup (it was wrong, or screened out) has no point."""
    history = History()
    for trial in sorted(view.trials, key=lambda trial: trial.experiment):
        if trial.task not in history.tracks:
            history.tracks[trial.task] = Track(trial.task, LINES[len(history.tracks) % len(LINES)])
        track = history.tracks[trial.task]
        if not track.steps:
            track.steps.append((trial.experiment, track.best))
        _add(history, track, trial, view.verdicts)
        gains = {name: track.best for name, track in history.tracks.items()}
        estimate = model_gain(view.profile, gains)
        if estimate is not None:
            history.model.append((trial.experiment, estimate))
    return history


def _add(history: History, track: Track, trial: Trial, verdicts: Mapping[int, Verdict]) -> None:
    track.trials.append(trial)
    if trial.decision is Decision.kept:
        gain = gain_of(track.trials, verdicts)
        track.best = gain.speedup if gain else track.best
        track.steps.append((trial.experiment, track.best))
        history.points.append(Point(trial.experiment, track.best, True))
    elif trial.speedup_vs_incumbent is not None:
        history.points.append(Point(trial.experiment, track.best * trial.speedup_vs_incumbent, False))
    elif trial.correctness != "PASS":
        history.wrong.append(trial.experiment)


def progress_png(view: RunView, path: Path) -> None:
    """Draw to `path`. A run without experiments gives a picture that says so. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    history = replay(view)
    last = max((trial.experiment for trial in view.trials), default=0)
    figure = Figure(figsize=(10, 6.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.5]})
    figure.suptitle(_title(view), x=0.012, ha="left", fontsize=12, color=INK)
    _draw_kernels(upper, history, last)
    _draw_model(lower, view, history, last)
    lower.set_xlabel("experiment", color=INK)
    lower.set_xlim(0, max(last * 1.02, 1))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # a reader sees the old picture or the new one
    try:
        figure.savefig(partial, format="png")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _title(view: RunView) -> str:
    name = view.config.name if view.config else (view.path.name if view.path else "run")
    kept = sum(trial.decision is Decision.kept for trial in view.trials)
    return f"{name}: {units.count(len(view.trials), 'experiment')}, {kept} kept"


def _draw_kernels(axes: Axes, history: History, last: int) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    _plain(axes)
    axes.set_ylabel("kernel against its first incumbent", color=INK)
    if not history.tracks:
        axes.text(0.5, 0.5, "no experiment yet", transform=axes.transAxes, ha="center", color=REVERTED)
        return
    for track in history.tracks.values():
        steps = [*track.steps, (last, track.best)]
        axes.plot(*zip(*steps, strict=True), drawstyle="steps-post", color=track.colour, linewidth=1.5, zorder=2)
    low = 0.4
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
    for kept, colour, size, label in ((False, REVERTED, 16, "reverted"), (True, KEPT, 34, "kept")):
        chosen = [point for point in history.points if point.kept is kept]
        # a kernel many times slower is drawn at the edge: it would squeeze what matters
        heights = [max(point.speedup, low) for point in chosen]
        axes.scatter(
            [p.experiment for p in chosen],
            heights,
            s=size,
            c=colour,
            label=label,
            zorder=4 if kept else 3,
            linewidths=0,
        )
    if history.wrong:
        axes.scatter(history.wrong, [low] * len(history.wrong), s=22, c=WRONG, marker="x", label="wrong", zorder=3)
    axes.set_yscale("log", base=2)
    axes.set_ylim(bottom=low * 0.92)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=3, fontsize=9, labelcolor=INK, handletextpad=0.1
    )
    _label_tracks(axes, history, last)


def _label_tracks(axes: Axes, history: History, last: int) -> None:
    """Names at the right end of the lines, pushed apart where they would cover each other."""
    better = [track for track in history.tracks.values() if track.best > 1]
    bottom, top = axes.get_ylim()
    gap = (top / bottom) ** 0.055
    ceiling = float("inf")
    for track in sorted(better, key=lambda track: -track.best)[:LABELS]:
        height = min(track.best, ceiling / gap)
        ceiling = height
        axes.annotate(
            f"{track.task}  {units.times(track.best)}",
            (last, height),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=track.colour,
            annotation_clip=False,
        )


def _draw_model(axes: Axes, view: RunView, history: History, last: int) -> None:
    from matplotlib.ticker import FuncFormatter

    _plain(axes)
    axes.set_ylabel("whole model", color=INK)
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 4)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}×"))
    if not history.model:
        note = "no estimate without a profile" if view.trials else ""
        axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", color=REVERTED)
        return
    steps = [(0, 1.0), *history.model, (last, history.model[-1][1])]
    xs, ys = zip(*steps, strict=True)
    axes.plot(xs, ys, drawstyle="steps-post", color=KEPT, linewidth=2)
    axes.fill_between(xs, 1, ys, step="post", color=KEPT, alpha=0.12, linewidth=0)
    axes.annotate(
        f"estimated {units.times(ys[-1])}{_measured(view)}",
        (last, ys[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=INK,
        annotation_clip=False,
    )
    axes.margins(y=0.25)


def _measured(view: RunView) -> str:
    if view.proof is None or view.proof.ours_ms is None:
        return ""
    return "\nmeasured:" + "".join(f"\n {units.times(row.ratio)} over {row.name}" for row in view.proof.baselines)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors="#666666", labelsize=9)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
