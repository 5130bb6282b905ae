"""What to do about a profile: each rule is a pure function of the record, and silent where the figures don't say so.

Gains are bounds, not promises: what a call would take if the named time went down to its floor (or to nothing). They
are against the model as it runs now, uncompiled, so `torch.compile` may reach a part of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autokernel.records import MaskRow, Profile, RegionRow
from autokernel.report import units
from autokernel.report.where import AGREEMENT

WORTH = 0.02  # part of a call below which kernels are not worth the search
GAPS = 0.05  # of launch gaps
BETWEEN = 0.05  # of Python between operators, on the CPU
OUTSIDE = 0.02  # outside the captured graphs
UNCOVERED = 0.05  # of regions that no generator covers
FAR = 2.0  # times the floor: from here on another kernel may pay
NARROWER = 1.5  # bfloat16's measured matrix rate over float32's, from which it is worth a thought
NAMED = 4  # regions, at most
NOTHING = "Nothing stands out: no single change that this profile can see is worth much."


@dataclass(frozen=True)
class Advice:
    """`saves`: at most this part of a call; None where the profile can't say. `command`: to paste, or None."""

    kind: str
    title: str  # what was seen, with its figures
    detail: str  # what to do
    saves: float | None = None
    command: str | None = None


def advise(profile: Profile) -> tuple[Advice, ...]:
    """What the figures say, largest possible gain first; what has no figure comes last. Empty: nothing stands out.

    Before all else comes what makes the rest doubtful: figures that contradict each other, attention that compiling
    would make slower.
    """
    first = [advice for advice in (disturbed(profile), *map(mask, _unfused(profile))) if advice is not None]
    found = [advice for rule in RULES if (advice := rule(profile)) is not None]
    found += [advice for row in profile.masks if row.traced_as != "unfused" and (advice := mask(row)) is not None]
    return (*first, *sorted(found, key=lambda advice: -(advice.saves or 0.0)))


def _unfused(profile: Profile) -> list[MaskRow]:
    return [row for row in profile.masks if row.traced_as == "unfused"]


def disturbed(profile: Profile) -> Advice | None:
    """The parts and the whole don't agree: what follows is from figures that can't all be right."""
    if not profile.uninstrumented_us or abs(profile.total_us / profile.uninstrumented_us - 1) <= AGREEMENT:
        return None
    return Advice(
        kind="measure-again",
        title=f"Measure again before you act: the parts add up to {units.duration_us(profile.total_us)}, "
        f"an undisturbed call takes {units.duration_us(profile.uninstrumented_us)}",
        detail="Other work on the machine is the usual cause. "
        + (
            "Here the graphs also hold masks that the model left alone never builds (below)."
            if any(row.eager in ("none", "causal") for row in profile.masks)
            else "`autokernel doctor` shows its load."
        ),
        command=_command("profile", profile),
    )


def generated(profile: Profile) -> Advice | None:
    """Regions that the built-in search can write kernels for."""
    rows = sorted((row for row in _kernels(profile) if row.generator), key=lambda row: -row.recoverable_us)
    saves = _part(profile, sum(row.recoverable_us for row in rows))
    if saves < WORTH:
        return None
    worth = [row for row in rows if _part(profile, row.recoverable_us) >= WORTH / 10]
    share = units.percent(sum(row.share for row in worth))
    return Advice(
        kind="optimize",
        title=f"autokernel can write kernels for {share} of a call",
        detail=f"Most to gain: {_listed(worth)}. The search measures against `torch.compile` and CUDA graphs "
        "too, and keeps what pays in the model.",
        saves=saves,
        command=_command("optimize", profile),
    )


def gaps(profile: Profile) -> Advice | None:
    """A GPU that waits for the CPU."""
    saves = _part(profile, profile.gaps_us or 0.0)
    if saves <= GAPS:
        return None
    return Advice(
        kind="cuda-graphs",
        title=f"The GPU waits for the CPU for {units.percent(saves)} of a call ({units.duration_us(profile.gaps_us)})",
        detail="No kernel can mend that; a CUDA graph launches all kernels at once: "
        '`torch.compile(model, mode="reduce-overhead")`. `autokernel optimize` measures every baseline with and '
        "without one. Larger batches help too."
        + (" But see the masks of attention before you compile." if any(map(mask, _unfused(profile))) else ""),
        saves=saves,
    )


def between(profile: Profile) -> Advice | None:
    """Python and dispatch between a CPU model's operators."""
    if profile.busy_us is not None:
        return None
    saves = max(0.0, 1 - profile.attributed - _part(profile, profile.outside_us))
    if saves <= BETWEEN:
        return None
    return Advice(
        kind="overhead",
        title=f"{units.percent(saves)} of a call lies between the operators: Python and dispatch",
        detail="The operators are small. `torch.compile` takes most of that away; larger batches make it matter less.",
        saves=saves,
    )


def outside(profile: Profile) -> Advice | None:
    """Code that no captured graph holds."""
    share = _part(profile, profile.outside_us)
    if share < OUTSIDE:
        return None
    return Advice(
        kind="outside",
        title=f"{units.percent(share)} of a call ({units.duration_us(profile.outside_us)}) is code outside the graphs "
        "that torch can capture",
        detail="No compiler and no kernel of ours reaches it. `TORCH_LOGS=graph_breaks` on a run under `torch.compile` "
        "says where graphs end: often `.item()`, printing, or a branch on a tensor's value.",
        saves=share,
    )


def uncovered(profile: Profile) -> Advice | None:
    """Work that no generator covers: near its floor it is best left, far from it another author may pay."""
    rows = [row for row in _kernels(profile) if row.generator is None and row.fingerprint]
    share = sum(row.share for row in rows)
    if share < UNCOVERED:
        return None
    far = [row for row in rows if _distance(row) >= FAR and _part(profile, row.recoverable_us) >= WORTH]
    title = f"No built-in generator covers {units.percent(share)} of a call: {_by_title(rows)}"
    if not far:
        return Advice(
            kind="uncovered",
            title=title,
            detail=f"None of it is worth a kernel: what is {FAR:.0f}× its floor or more could gain less than "
            f"{units.percent(WORTH)} of a call each. Fewer or narrower operations are what is left.",
        )
    saves = _part(profile, sum(row.recoverable_us for row in far))
    return Advice(
        kind="uncovered",
        title=title,
        detail=f"Far from the floor: {_listed(far)}. You, an LLM or an agent can write these: cut them out, "
        "then judge a kernel with `autokernel bench TASK --kernel FILE`.",
        saves=saves,
        command=_command("extract", profile),
    )


def precision(profile: Profile) -> Advice | None:
    """float32 matrix products on a device whose matrix rate in bfloat16 was measured to be much higher."""
    rates = profile.ceilings.matrix
    wide, narrow = rates.get("float32", 0.0), rates.get("bfloat16", 0.0)
    if not wide or narrow / wide < NARROWER:
        return None
    rows = [row for row in _kernels(profile) if row.dtype == "float32" and _bound_by_matrices(row, wide)]
    saves = _part(profile, sum(row.time_us for row in rows) * (1 - wide / narrow))
    if saves < WORTH:
        return None
    share = units.percent(sum(row.share for row in rows))
    return Advice(
        kind="precision",
        title=f"{share} of a call is bound by matrix products in float32; in bfloat16 this device multiplies "
        f"{units.multiple(narrow / wide)} as fast",
        detail=f"{_by_title(rows)}. Measured here, on large products. Where the model's accuracy allows it: "
        "`--dtype bfloat16` profiles it that way. Results change; check them on your data.",
        saves=saves,
    )


def mask(row: MaskRow) -> Advice | None:
    """Attention that is handed a mask without need: while tracing only, or one that says nothing."""
    where = f"{units.count(row.count, 'attention')} ({units.percent(row.share)} of a call)"
    if row.eager in ("none", "causal"):
        title = f"A mask is built for {where} only while something traces; left alone the model passes {_handed(row)}"
    elif row.folds_to != "given":
        title = f"A mask that {'hides nothing' if row.folds_to == 'none' else 'is exactly causal'} is handed to {where}"
    else:
        return None
    return Advice(kind="attention-mask", title=title, detail=f"{_compiled(row)} {_instead(row)}")


RULES: tuple[Callable[[Profile], Advice | None], ...] = (generated, gaps, between, outside, uncovered, precision)


# --- words ------------------------------------------------------------------------------------------------------------


def _handed(row: MaskRow) -> str:
    return "is_causal and no mask" if row.eager == "causal" else "no mask"


def _compiled(row: MaskRow) -> str:
    """What a compiler makes of the mask, as far as it was seen."""
    if row.traced_as == "unfused":
        wide = ", in float32" if row.dtype in ("bfloat16", "float16") else ""
        return (
            f"With it `torch.compile` takes attention the unfused way{wide}: the whole matrix of scores goes through "
            "memory, and the compiled model can be slower than this one. Compare before you use it."
        )
    if row.traced_as is not None:
        return f"With it `torch.compile` takes the {row.traced_as} kernel; flash attention takes no mask."
    return (
        "`torch.compile` sees the mask. The CPU's fused kernel takes one, so that little is lost here; on a GPU flash "
        "attention takes none, and attention can end up unfused, in float32."
    )


def _instead(row: MaskRow) -> str:
    if row.folds_to != "given":
        says = "nothing" if row.folds_to == "none" else "is_causal"
        own = "" if row.eager in ("none", "causal") else f" In your own code: {_own(row)}."
        return (
            f"It is made of shapes alone and folds to {says}: `autokernel optimize` folds it and measures which kernel "
            f"is fastest.{own}"
        )
    return f"It does not fold ({row.reason}): where nothing is masked, pass no mask to the model."


def _own(row: MaskRow) -> str:
    return "leave `attn_mask` out" if row.folds_to == "none" else "pass `is_causal=True` in its place"


def _listed(rows: Sequence[RegionRow]) -> str:
    """ "add → rms norm (1.01 ms to gain, 4.3× its floor); …": by title, the first few."""
    titles: dict[str, list[RegionRow]] = {}
    for row in rows:
        titles.setdefault(row.title, []).append(row)
    ranked = sorted(titles.items(), key=lambda item: -sum(row.recoverable_us for row in item[1]))
    named = "; ".join(_gain(title, found) for title, found in ranked[:NAMED])
    return named + (f"; {units.count(len(ranked) - NAMED, 'other')}" if ranked[NAMED:] else "")


def _gain(title: str, rows: Sequence[RegionRow]) -> str:
    floor = sum(row.floor_us for row in rows)
    away = f", {units.multiple(sum(row.time_us for row in rows) / floor)} its floor" if floor > 0 else ""
    often = f", {len(rows)} regions" if len(rows) > 1 else ""
    return f"{title} ({units.duration_us(sum(row.recoverable_us for row in rows))} to gain{away}{often})"


def _by_title(rows: Sequence[RegionRow]) -> str:
    """ "linear 52.0 %, matmul 12.0 % and 3 others", largest first."""
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.title] = shares.get(row.title, 0.0) + row.share
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    named = ", ".join(f"{title} {units.percent(share)}" for title, share in ranked[:NAMED])
    return named + (f" and {units.count(len(ranked) - NAMED, 'other')}" if ranked[NAMED:] else "")


def _command(name: str, profile: Profile) -> str | None:
    """With the device and the other flags; None for Python objects, which no command line can name."""
    if profile.target == "python":
        return None
    flags = list(profile.flags)
    if name == "extract" and "--threads" in flags:  # it has no such flag
        at = flags.index("--threads")
        del flags[at : at + 2]
    return shlex.join(["autokernel", name, profile.target, "--device", profile.device, *flags])


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _kernels(profile: Profile) -> list[RegionRow]:
    return [row for row in profile.regions if row.kind != "gap"]


def _part(profile: Profile, time_us: float) -> float:
    return time_us / profile.total_us if profile.total_us else 0.0


def _distance(row: RegionRow) -> float:
    return row.time_us / row.floor_us if row.floor_us > 0 else 0.0


def _bound_by_matrices(row: RegionRow, rate: float) -> bool:
    """Most of its floor is arithmetic at the matrix rate, not memory and not launches."""
    return row.flops > 0 and row.floor_us > 0 and 1e6 * row.occurrences * row.flops / rate >= 0.99 * row.floor_us


def faster(saves: float) -> str:
    """ "1.25×": a call without this part of its time."""
    return units.times(1 / max(1 - saves, 1e-3))
