"""Where the time goes: by region, by who can write a kernel for it, by source line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autokernel.records import LineRow, Profile, RegionRow
from autokernel.report import units

ROWS = 14
LINES = 10
ATTRIBUTED = 0.95
AGREEMENT = 0.05
GAP = "gap"  # the kind of the row for the time between kernels


def profile_table(profile: Profile, *, lines: bool = True) -> RenderableType:
    """The first table a user sees. Rows come as the profile ranks them: most recoverable time first."""
    parts: list[RenderableType] = [_heading(profile), _regions(profile), *_gaps(profile)]
    parts += [*_uncovered(profile), *_skipped(profile), *_notes(profile)]
    if lines and profile.lines:
        parts += [Text(), Text("By source line", style="bold"), _lines(profile.lines)]
    return Group(*parts)


def table(first: str, *figures: str) -> Table:
    """The one look of all tables: the first column gives way where the terminal is narrow, the figures stay whole."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    made.add_column(first)
    for name in figures:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def short(text: str) -> Text:
    """A cell of the first column, cut with an ellipsis (`rich` shrinks only columns that may wrap)."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _heading(profile: Profile) -> Text:
    text = Text.from_markup(
        f"[bold]Where the time goes[/bold]: {units.duration_us(profile.uninstrumented_us)} a call, "
        f"{escape(device(profile))}\n"
    )
    off = profile.total_us / profile.uninstrumented_us - 1 if profile.uninstrumented_us else 0.0
    whole = "it"
    if profile.busy_us is not None:
        text.append(f"Kernels run for {units.duration_us(profile.busy_us)} of it. ")
        whole = "the kernels' time"
    text.append(f"{units.percent(profile.attributed)} of {whole} is attributed to a region or a named operator; ")
    text.append(f"the measured parts add up to {100 * off:+.1f} % of an undisturbed call.")
    for doubt in doubts(profile):
        text.append(f"\n{doubt}", style="yellow")
    return text.append("\n")


def doubts(profile: Profile) -> tuple[str, ...]:
    """Why the figures are to be read with care; empty where they agree."""
    found = []
    if profile.attributed < ATTRIBUTED:
        found.append(f"Less than {units.percent(ATTRIBUTED)} is attributed: read the shares with care.")
    if profile.uninstrumented_us and abs(profile.total_us / profile.uninstrumented_us - 1) > AGREEMENT:
        found.append(f"The parts and the whole differ by more than {units.percent(AGREEMENT)}: was the machine busy?")
    return tuple(found)


def device(profile: Profile) -> str:
    """ "cpu, 2 threads"; "cuda:0, NVIDIA H200" """
    if profile.busy_us is None:
        return f"{profile.device}, {units.count(profile.threads, 'thread')}"
    return f"{profile.device}, {profile.device_name}" if profile.device_name else profile.device


def of_kernels(profile: Profile) -> tuple[RegionRow, ...]:
    """The rows that a kernel could shorten: all but the gaps between kernels."""
    return tuple(row for row in profile.regions if row.kind != GAP)


def _gaps(profile: Profile) -> Iterable[RenderableType]:
    for row in profile.regions:
        if row.kind == GAP:
            figures = f"{units.duration_us(row.time_us)}, {units.percent(row.share)} of the time"
            yield Text(f"{row.title}: {figures}").append(f" – {row.reason}" if row.reason else "", style="dim")


def _regions(profile: Profile) -> RenderableType:
    made = table("region", "×", "time", "share", "floor", "/ floor", "to gain", "written by")
    made.columns[-1].justify = "left"
    rows = of_kernels(profile)
    for row, name in zip(rows[:ROWS], names(rows), strict=False):
        made.add_row(
            short(name),
            str(row.occurrences),
            units.duration_us(row.time_us),
            units.percent(row.share),
            units.duration_us(row.floor_us),
            units.multiple(row.time_us / row.floor_us) if row.floor_us > 0 else "–",
            units.duration_us(row.recoverable_us),
            escape(row.generator) if row.generator else "[dim]LLM / you[/dim]",
        )
    rest = rows[ROWS:]
    if not rest:
        return made
    share = units.percent(sum(row.share for row in rest))
    return Group(made, Text(f"… and {units.count(len(rest), 'region')} more, {share} of the time", style="dim"))


def names(rows: tuple[RegionRow, ...]) -> list[str]:
    """Titles with the task's number, where there is one, and the place in the source, where a title occurs twice."""
    often = Counter(row.title for row in rows)
    names = []
    for row in rows:
        number = f"{row.task.partition('-')[0]} " if row.task else ""
        place = f"  {row.lines[0].split()[0]}" if often[row.title] > 1 and row.lines else ""
        names.append(f"{number}{row.title}{place}")
    return names


def _uncovered(profile: Profile) -> Iterable[RenderableType]:
    """What the built-in generator can't write, by reason, with its share: never dropped silently."""
    missing = [row for row in of_kernels(profile) if row.generator is None]
    if not missing:
        return
    total = units.percent(sum(row.share for row in missing))
    yield Text.from_markup(
        f"\n[bold]No built-in generator[/bold] for {total} of the time; "
        "you, an LLM or an agent can write these (`autokernel submit`):"
    )
    for what, reason in by_reason(profile):
        yield Text(f"  {what}", style="dim").append(f" – {reason}" if reason else "")


def by_reason(profile: Profile) -> tuple[tuple[str, str], ...]:
    """What no built-in generator covers, with its shares, and why; the largest first."""
    missing = [row for row in of_kernels(profile) if row.generator is None]
    missing.sort(key=lambda row: row.reason)
    groups = [(reason, list(rows)) for reason, rows in groupby(missing, key=lambda row: row.reason)]
    groups.sort(key=lambda item: -sum(row.share for row in item[1]))
    return tuple((_by_title(rows), reason) for reason, rows in groups)


def _by_title(rows: list[RegionRow]) -> str:
    """`linear 57.0 % (5 regions), matmul 3.3 %`, largest first."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        shares.setdefault(row.title, []).append(row.share)
    return ", ".join(
        f"{title} {units.percent(sum(found))}" + (f" ({len(found)} regions)" if len(found) > 1 else "")
        for title, found in sorted(shares.items(), key=lambda item: -sum(item[1]))
    )


def _skipped(profile: Profile) -> Iterable[RenderableType]:
    if profile.skipped:
        yield Text("\nLeft as written, not captured:", style="bold")
        for line in profile.skipped:
            yield Text(f"  {line}")


def _notes(profile: Profile) -> Iterable[RenderableType]:
    for note in profile.notes:
        yield Text(f"note: {note}", style="dim")


def _lines(rows: tuple[LineRow, ...]) -> Table:
    made = table("line", "time", "share")
    for row in rows[:LINES]:
        made.add_row(short(row.line), units.duration_us(row.time_us), units.percent(row.share))
    return made
