"""One experiment in one line, while the loop runs."""

from __future__ import annotations

from autokernel.records import Decision, Trial
from autokernel.report import units
from autokernel.report.view import RunView, model_gain, standings

WORDS = 40  # of the description; the journal has it whole


def progress_line(view: RunView, trial: Trial, seconds_left: float | None = None) -> str:
    """Plain text; `view.trials` includes `trial`. `#12 03-rms-norm kept 1.31× [1.28, 1.34] · rows=4 · best …`."""
    mark = "kept" if trial.decision is Decision.kept else "    "
    parts = [f"#{trial.experiment:<3} {trial.task:<18} {mark} {_figure(trial)}", best_so_far(view)]
    if seconds_left is not None:
        parts.append(f"{units.duration(seconds_left)} left")
    if trial.description:
        parts.append(trial.description if len(trial.description) <= WORDS else trial.description[: WORDS - 1] + "…")
    return " · ".join(parts)


def best_so_far(view: RunView) -> str:
    """`best so far: model ≈ 1.12× (2 kernels)`; without a profile, the best task."""
    gains = {line.task: line.gain.speedup for line in standings(view) if line.gain}
    if not gains:
        return "best so far: nothing kept yet"
    estimate = model_gain(view.profile, gains)
    if estimate is None:
        name = max(gains, key=gains.__getitem__)
        return f"best so far: {units.times(gains[name])} on {name}"
    return f"best so far: model ≈ {units.times(estimate)}"


def _figure(trial: Trial) -> str:
    """The measured ratio, or in one word why there is none."""
    if trial.speedup_vs_incumbent is None:
        return trial.reason
    return f"{units.times(trial.speedup_vs_incumbent)} {units.interval(trial.ci_low, trial.ci_high)}".rstrip()
