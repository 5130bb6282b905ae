"""Numbers as a person reads them: three significant digits, one unit."""

from __future__ import annotations

from autokernel.report.view import Gain


def duration_us(value: float | None) -> str:
    """A device time given in microseconds."""
    if value is None:
        return "–"
    if value < 1:
        return f"{1e3 * value:.0f} ns"
    if value < 1_000:
        return f"{_three(value)} µs"
    if value < 1_000_000:
        return f"{_three(value / 1e3)} ms"
    return f"{_three(value / 1e6)} s"


def duration(seconds: float) -> str:
    """A wall time: 42s, 3m05s, 1h20m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f} %"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def error(value: float | None) -> str:
    """A largest error; None is one without a finite value."""
    return "not finite" if value is None else f"{value:.2e}"


def of_allowed(worst: float | None) -> str:
    """The largest |error| / tolerance in words; 1 is the limit, None is beyond all limits."""
    if worst is None or worst > 1e300:
        return "an infinity or NaN where none is allowed"
    part = f"{100 * worst:.0f} % of" if worst < 10 else f"{worst:.3g} times"
    return f"at worst {part} what is allowed"


def multiple(ratio: float) -> str:
    """How many times something is another thing: 4.3×, 469×."""
    return f"{ratio:.1f}×" if ratio < 99.95 else f"{ratio:.0f}×"


def interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def gain(value: Gain | None) -> str:
    if value is None:
        return "–"
    return f"{times(value.speedup)} {interval(value.low, value.high)}".rstrip()


def count(number: int, noun: str) -> str:
    """`1 experiment`, `2 experiments`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def flops(rate: float) -> str:
    """Floating-point operations a second: 12.3 Gflop/s."""
    return f"{_scaled(rate)}flop/s"


def bandwidth(rate: float) -> str:
    """Bytes a second: 18.2 GB/s."""
    return f"{_scaled(rate)}B/s"


def size(number: int) -> str:
    """Bytes, in powers of two: 64 KiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number} B"


def _scaled(rate: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}" if rate < 999.5 * scale else f"{rate / scale:.0f} {unit}"
    return f"{rate:.3g} "


def _three(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
