"""A profile as one HTML page: no script, no request, light or dark as the reader's system is.

Every text of the user's model passes the template's escaping, and what a terminal or a bidirectional reader would obey
is written out. The page's own policy forbids scripts and requests, so that a mistake here could not load anything.
"""

from __future__ import annotations

import functools
import importlib.metadata
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from autokernel.records import Profile, RegionRow, plain
from autokernel.report import units, where
from autokernel.report.advice import NOTHING, advise, faster
from autokernel.report.roofline import HEIGHT, LEFT, RIGHT, WIDTH, roofline

SEEN = 5e-4  # of a call: less would be shown as 0.0 %


@dataclass(frozen=True)
class Figure:
    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Slice:
    """A part of a call, by who can shorten it."""

    kind: str  # the class of its colour
    label: str
    share: float


def profile_page(profile: Profile) -> str:
    """The whole page. Its length grows with the regions and lines of the profile, all of which are in it."""
    return _template().render(
        profile=profile,
        command=shlex.join(["autokernel", "profile", profile.target, "--device", profile.device, *profile.flags]),
        device=where.device(profile),
        figures=figures(profile),
        slices=slices(profile),
        doubts=where.doubts(profile),
        advice=advise(profile),
        nothing=NOTHING,
        kernels=where.of_kernels(profile),
        names=where.names(where.of_kernels(profile)),
        gaps=[row for row in profile.regions if row.kind == where.GAP],
        longest=max((row.time_us for row in where.of_kernels(profile)), default=0.0) or 1.0,
        costliest=max((row.share for row in profile.lines), default=0.0) or 1.0,
        uncovered=where.by_reason(profile),
        roofline=roofline(profile),
        box={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT},
        version=_version(),
    )


def figures(profile: Profile) -> tuple[Figure, ...]:
    """What is read first."""
    rows = where.of_kernels(profile)
    floor = sum(row.floor_us for row in rows)
    ours = sum(row.recoverable_us for row in rows if row.generator)
    found = [Figure("a call", units.duration_us(profile.uninstrumented_us), "as the model runs now, uncompiled")]
    if floor > 0:
        found.append(
            Figure(
                "from the roof",
                units.multiple(profile.total_us / floor),
                f"all regions at their floors: {units.duration_us(floor)}",
            )
        )
    if profile.total_us:
        part = ours / profile.total_us
        found.append(Figure("autokernel can gain", units.percent(part), f"at most; {faster(part)} faster"))
    if profile.busy_us is not None and profile.gaps_us is not None:
        found.append(Figure("GPU waits", units.percent(profile.gaps_us / profile.total_us), "between its kernels"))
    found.append(Figure("attributed", units.percent(profile.attributed), "to a region or a named operator"))
    return tuple(found)


def slices(profile: Profile) -> tuple[Slice, ...]:
    """A call cut by who can shorten what; the parts add up to it, but for those too small to see."""
    rows = where.of_kernels(profile)
    shares = {
        ("ours", "autokernel can write it"): sum(row.share for row in rows if row.generator),
        ("others", "an LLM, an agent or you"): sum(row.share for row in rows if not row.generator and row.fingerprint),
        ("views", "views and write-backs"): sum(row.share for row in rows if not row.generator and not row.fingerprint),
        ("gaps", "the GPU waits"): sum(row.share for row in profile.regions if row.kind == where.GAP),
        ("outside", "outside the graphs"): profile.outside_us / profile.total_us if profile.total_us else 0.0,
    }
    shares["between", "between the operators"] = 1 - sum(shares.values())
    return tuple(Slice(kind, label, share) for (kind, label), share in shares.items() if share >= SEEN)


def away(row: RegionRow) -> str:
    return units.multiple(row.time_us / row.floor_us) if row.floor_us > 0 else "–"


def width(part: float) -> str:
    """A CSS width."""
    return f"{100 * max(0.0, min(part, 1.0)):.2f}%"


def spans(text: str) -> list[tuple[bool, str]]:
    """Text in pieces; true for those that stood in backticks."""
    return [(bool(number % 2), piece) for number, piece in enumerate(text.split("`")) if piece]


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers: dict[str, Any] = {
        "duration": units.duration_us,
        "percent": units.percent,
        "flops": units.flops,
        "bandwidth": units.bandwidth,
        "size": units.size,
        "count": units.count,
        "faster": faster,
        "away": away,
        "spans": spans,
        "width": width,
    }
    environment.filters.update(helpers)
    return environment.get_template("profile.html.j2")


def _version() -> str:
    try:
        return importlib.metadata.version("autokernel-torch")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return ""
