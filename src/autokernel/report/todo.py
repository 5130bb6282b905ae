"""What to do, as the terminal shows it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from autokernel.records import Profile
from autokernel.report import units
from autokernel.report.advice import NOTHING, Advice, advise, faster


def advice_text(profile: Profile) -> RenderableType:
    """A numbered list; commands stand on lines of their own, to be copied."""
    parts: list[RenderableType] = [Text("\nWhat to do", style="bold")]
    found = advise(profile)
    for number, advice in enumerate(found, start=1):
        parts += _item(number, advice)
    return Group(*parts, *([] if found else [Text(NOTHING)]))


def _item(number: int, advice: Advice) -> list[RenderableType]:
    head = Text(f"{number}. ").append(advice.title, style="bold")
    if advice.saves is not None:
        head.append(f"  at most {units.percent(advice.saves)}, {faster(advice.saves)}", style="green")
    parts: list[RenderableType] = [head, Padding(Text(advice.detail), (0, 0, 0, 3), expand=False)]
    if advice.command is not None:
        parts.append(Text(f"   {advice.command}", style="cyan", no_wrap=True, overflow="ignore"))
    return parts
