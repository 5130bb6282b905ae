"""One profile from the profiles of several weighted input sets."""

from __future__ import annotations

from collections.abc import Sequence

from autokernel.records import LineRow, MaskRow, Profile, RegionRow


def merge(profiles: Sequence[Profile], weights: Sequence[float]) -> Profile:
    """Times are the weighted means over the cases; a region counts as often as in the case where it occurs most.

    Weights need not sum to one. A region that a case does not have costs nothing there.
    """
    if len(profiles) == 1:
        return profiles[0]
    parts = [weight / sum(weights) for weight in weights]
    total = sum(part * profile.total_us for part, profile in zip(parts, profiles, strict=True))
    regions = sorted(_regions(profiles, parts, total), key=_rank)
    busy = [profile.total_us if profile.busy_us is None else profile.busy_us for profile in profiles]
    return profiles[0].model_copy(
        update={
            "total_us": total,
            "uninstrumented_us": sum(
                part * profile.uninstrumented_us for part, profile in zip(parts, profiles, strict=True)
            ),
            "attributed": _mean(parts, [p.attributed * b for p, b in zip(profiles, busy, strict=True)])
            / _mean(parts, busy),
            "busy_us": _mean_or_none(parts, [profile.busy_us for profile in profiles]),
            "gaps_us": _mean_or_none(parts, [profile.gaps_us for profile in profiles]),
            "notes": tuple(dict.fromkeys(text for profile in profiles for text in profile.notes)),
            "regions": tuple(regions),
            "lines": tuple(sorted(_lines(profiles, parts, total), key=lambda row: -row.time_us)),
            "skipped": tuple(dict.fromkeys(text for profile in profiles for text in profile.skipped)),
            "outside_us": _mean(parts, [profile.outside_us for profile in profiles]),
            "masks": _masks(profiles, parts, total),
        }
    )


def _rank(row: RegionRow) -> tuple[bool, float, float, str]:
    """Most recoverable time first; the time between a GPU's kernels, which no kernel can shorten, last."""
    return row.kind == "gap", -row.recoverable_us, -row.time_us, row.title


def _mean(parts: Sequence[float], values: Sequence[float]) -> float:
    return sum(part * value for part, value in zip(parts, values, strict=True))


def _mean_or_none(parts: Sequence[float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(parts, known) if len(known) == len(parts) else None


def _regions(profiles: Sequence[Profile], parts: Sequence[float], total: float) -> list[RegionRow]:
    found: dict[tuple[str, str, str], RegionRow] = {}
    for part, profile in zip(parts, profiles, strict=True):
        for row in profile.regions:
            key = (row.fingerprint, row.shape_key, "" if row.fingerprint else row.title)
            old = found.get(key)
            times = {
                name: part * getattr(row, name) + (getattr(old, name) if old is not None else 0.0)
                for name in ("time_us", "floor_us", "recoverable_us")
            }
            occurrences = max(row.occurrences, old.occurrences if old is not None else 0)
            found[key] = row.model_copy(update={**times, "share": times["time_us"] / total, "occurrences": occurrences})
    return list(found.values())


def _lines(profiles: Sequence[Profile], parts: Sequence[float], total: float) -> list[LineRow]:
    times: dict[str, float] = {}
    for part, profile in zip(parts, profiles, strict=True):
        for row in profile.lines:
            times[row.line] = times.get(row.line, 0.0) + part * row.time_us
    return [LineRow(line=line, time_us=time, share=time / total) for line, time in times.items()]


def _masks(profiles: Sequence[Profile], parts: Sequence[float], total: float) -> tuple[MaskRow, ...]:
    """Rows that differ only in time and number are one: the mean time, the number of the case that has most."""
    found: dict[MaskRow, MaskRow] = {}
    for part, profile in zip(parts, profiles, strict=True):
        for row in profile.masks:
            key = row.model_copy(update={"count": 0, "time_us": 0.0, "share": 0.0})
            old = found.get(key, key)
            time = old.time_us + part * row.time_us
            update = {"count": max(old.count, row.count), "time_us": time, "share": time / total}
            found[key] = key.model_copy(update=update)
    return tuple(sorted(found.values(), key=lambda row: -row.time_us))
