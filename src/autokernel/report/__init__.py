"""The journal and the proof as a terminal summary and progress.png. Imports neither torch nor numpy.

Everything here is a function of records; nothing reads a run folder. A run that is still going on is a `RunView` with
what there is so far.

    view.py       RunView, and the arithmetic over its trials: each task's gain, the estimate for the model
    units.py      numbers as a person reads them
    where.py      profile_table(profile): where the time goes
    advice.py     advise(profile): what to do about it; todo.py: the same on the terminal
    page.py       profile_page(profile): all of it as one HTML page (profile.html.j2); roofline.py: its drawing
    overview.py   summary(view): what was tried, what was kept, end to end, the result
    facts.py      run_facts(view), profile_facts(profile): the same as data
    judging.py    judged(verdict): one verdict
    progress.py   progress_png(view, path)
    usefile.py    use_text(path, config): the text of use.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autokernel.report.view import RunView

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from autokernel.records import Profile, RunConfig, Trial, Verdict

__all__ = [
    "RunView",
    "advice_text",
    "judged",
    "profile_facts",
    "profile_page",
    "profile_table",
    "progress_png",
    "run_facts",
    "summary",
    "use_text",
]


def profile_table(profile: Profile, *, lines: bool = True) -> RenderableType:
    """Where the time goes, as something `rich` prints; `lines` adds the table by source line."""
    from autokernel.report.where import profile_table as build

    return build(profile, lines=lines)


def advice_text(profile: Profile) -> RenderableType:
    """What to do about a profile, as something `rich` prints."""
    from autokernel.report.todo import advice_text as build

    return build(profile)


def profile_page(profile: Profile) -> str:
    """The profile as one HTML page that needs nothing beside it."""
    from autokernel.report.page import profile_page as build

    return build(profile)


def profile_facts(profile: Profile) -> dict[str, Any]:
    """The profile as data for `--json`: what profile.json holds, and `advice`."""
    from autokernel.report.facts import profile_facts as build

    return build(profile)


def summary(view: RunView) -> RenderableType:
    """The whole report of a run, finished or not, as something `rich` prints."""
    from autokernel.report.overview import summary as build

    return build(view)


def run_facts(view: RunView) -> dict[str, Any]:
    """The summary as data for `--json`: the run, each task's standing, the proof."""
    from autokernel.report.facts import run_facts as build

    return build(view)


def judged(verdict: Verdict, trial: Trial | None = None, *, stages: bool = True) -> RenderableType:
    """A verdict as something `rich` prints; with its line of the journal, also what the loop decided.

    `stages=False` leaves out the stages, for who has seen them pass.
    """
    from autokernel.report.judging import judged as build

    return build(verdict, trial, stages=stages)


def progress_png(view: RunView, path: Path) -> None:
    """Draw the experiments into a PNG file. Raises OSError when it can't be written."""
    from autokernel.report.progress import progress_png as draw

    draw(view, path)


def use_text(path: Path, config: RunConfig) -> str:
    """The text of use.py for the run at `path`: the three lines to paste, in a file that runs as it is."""
    from autokernel.report.usefile import use_text as build

    return build(path, config)
