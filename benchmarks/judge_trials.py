"""The judge on a real device, where the truth is known: a kernel against itself, and against itself with ballast.

A/A: a text that differs from the incumbent in a comment is judged like any candidate (screen, stages, test,
confirmation). How many of 300 are kept? Gain: the incumbent does some rows twice, so that the candidate is truly faster
by a known part. How many of 40 are kept? Rows are batches, so that they can be done in parts. The limits (cap,
least gain, what the screen allows for) follow from the device's own spread, measured first, as in a run.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table
from judging import Judging
from ops import SOFTMAX

if TYPE_CHECKING:
    from autokernel.judge.judge import Judge
    from autokernel.judge.thresholds import Thresholds

EXERCISES = ("judge/*.py", "task/*.py", "languages/*.py")
AA_TRIALS, AA_BATCH, GAIN_TRIALS, GAIN_BATCH = 300, 25, 40, 10
GAINS = {"cuda": 0.015, "cpu": 0.10}
MOST_AA = {"cuda": 0, "cpu": 1}
POWER = 0.9

_REFERENCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn({rows}, {width}, dtype=torch.{dtype})]
"""
_CPP = '''"""Softmax over the last dim; the first EXTRA rows are done twice."""

import ctypes

from autokernel_loader import load

LANGUAGE = "cpp"
EXTRA = 0
SOURCE = r"""
#include <cmath>
extern "C" void softmax(const float* x, float* out, long rows, long width, long extra) {
#pragma omp parallel for
    for (long i = 0; i < rows + extra; ++i) {
        const float* in = x + (i % rows) * width;
        float* to = out + (i % rows) * width;
        float most = -INFINITY, sum = 0;
        for (long j = 0; j < width; ++j) most = in[j] > most ? in[j] : most;
        for (long j = 0; j < width; ++j) sum += std::exp(in[j] - most);
        for (long j = 0; j < width; ++j) to[j] = std::exp(in[j] - most) / sum;
    }
}
"""
kernel = load(SOURCE).softmax
kernel.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3


def launch(x, out):
    x = x.contiguous()
    if out.numel():
        kernel(x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], EXTRA)
'''
_TRITON = (
    SOFTMAX.replace('LANGUAGE = "triton"', 'LANGUAGE = "triton"\nEXTRA = 0')
    .replace(
        "def softmax_rows(x, out, width, BLOCK: tl.constexpr):\n    start = tl.program_id(0).to(tl.int64) * width",
        "def softmax_rows(x, out, rows, width, BLOCK: tl.constexpr):\n"
        "    start = (tl.program_id(0) % rows).to(tl.int64) * width",
    )
    .replace("softmax_rows[(x.shape[0],)](x, out, x.shape[1],", "softmax_rows[(x.shape[0] + EXTRA,)](x, out, *x.shape,")
)
SIZES = {"cuda": (4096, 4096, "bfloat16"), "cpu": (1024, 512, "float32")}


class Trials:
    """The judge of one task, its limits, and the incumbent with ballast; each made when first needed."""

    def __init__(self, judging: Judging, device: str) -> None:
        self.judging, self.device = judging, device
        self.rows, width, dtype = SIZES[device]
        self.path = judging.write("softmax.py", _REFERENCE.format(rows=self.rows, width=width, dtype=dtype))
        self.plain = _CPP if device == "cpu" else _TRITON

    @functools.cached_property
    def judge(self) -> Judge:
        return self.judging.judge(self.path, ceilings=self.device == "cuda")

    @functools.cached_property
    def limits(self) -> Thresholds:
        from autokernel.judge.thresholds import spread_of_interval, thresholds

        found = self._compare(self.plain, self.plain, 8)
        return thresholds(spread_of_interval(found.ci_low, found.ci_high, found.pairs, found.confidence))

    def _compare(self, first: str, second: str, pairs: int) -> Any:
        from autokernel.judge import Opponent

        return self.judge.compare(Opponent("kernel", first), Opponent("kernel", second), pairs=pairs)

    def with_ballast(self, extra: int) -> str:
        return self.plain.replace("EXTRA = 0", f"EXTRA = {extra}")

    @functools.cached_property
    def slower(self) -> tuple[str, tuple[float, float, float]]:
        """The incumbent, and by how much the plain kernel is faster: measured on its own, with its 95 % interval.

        The ballast is the part of the rows that is wanted; it changes only where a measurement is sure that this is
        not the gain, for on a noisy machine a correction adds more than it takes away.
        """
        wanted = GAINS[self.device]
        extra = round(wanted * self.rows)
        for _ in range(3):
            found = self._compare(self.with_ballast(extra), self.plain, 12 if self.device == "cuda" else 16)
            if found.ci_low <= 1 + wanted <= found.ci_high or abs(found.speedup - 1 - wanted) < 0.1 * wanted:
                break
            extra = max(1, round(extra * wanted / max(found.speedup - 1, wanted / 4)))
        pairs = 16 if self.device == "cuda" else 24
        found = self._compare(self.with_ballast(extra), self.plain, pairs)
        return self.with_ballast(extra), (found.speedup - 1, found.ci_low - 1, found.ci_high - 1)

    def judged(self, incumbent: str, number: str) -> Figures:
        """One candidate, from its text to a keep or not."""
        from autokernel.judge import Opponent, Request

        limits = self.limits
        request = Request(min_gain=limits.min_gain, max_pairs=limits.cap, spread=limits.spread)
        begin = time.monotonic()
        verdict = self.judge.verdict(f"{self.plain}\n# {number}\n", Opponent("kernel", incumbent), request)
        timing = verdict.timing
        return {
            "kept": timing is not None and timing.confirmed and verdict.verdict.value == "accepted",
            "reason": verdict.reason.value,
            "stage": verdict.stage.value,
            "speedup": timing.speedup if timing is not None else None,
            "seconds": time.monotonic() - begin,
        }


def measure(trials: Trials, kind: str, batch: int, count: int) -> Figures:
    incumbent, gain = (trials.plain, (0.0, 0.0, 0.0)) if kind == "aa" else trials.slower
    found = [trials.judged(incumbent, f"{kind} {batch} {n} {time.time_ns()}") for n in range(count)]
    odd = [one for one in found if one["reason"] not in ("ok", "too_slow")]
    return {
        "trials": found,
        "count": count,
        "device": trials.device,
        "kept": sum(one["kept"] for one in found),
        "screened_out": sum(one["reason"] == "too_slow" for one in found),
        "refused": odd,  # an honest kernel must never be
        "ballast_share": 0.0 if kind == "aa" else _extra(incumbent) / trials.rows,
        "measured_gain": gain,
        "spread": trials.limits.spread,
        "min_gain": trials.limits.min_gain,
        "cap": trials.limits.cap,
        "seconds_each": statistics.mean(one["seconds"] for one in found),
        "passed": not odd and _enough(kind, sum(one["kept"] for one in found), count, trials.device),
    }


def _extra(source: str) -> int:
    line = next(line for line in source.splitlines() if line.startswith("EXTRA"))
    return int(line.partition("=")[2])


def _enough(kind: str, kept: int, count: int, device: str) -> bool:
    """Of one batch; `table` says what all of them together must reach."""
    return kept <= MOST_AA[device] if kind == "aa" else kept >= POWER * count


def _together(kind: str, kept: int, tried: int, device: str) -> str:
    """A batch with one false keep may pass; twelve of them may not."""
    if kind == "gain":
        return "reached" if kept >= POWER * tried else f"MISSED: at least {POWER:.0%} of {GAIN_TRIALS} are due"
    most = MOST_AA[device]
    return "reached so far" if kept <= most else f"MISSED: at most {most} of {AA_TRIALS} may be kept"


def table(results: dict[str, Figures]) -> str:
    lines = []
    for name, kind in (("A/A", "aa"), ("gain", "gain")):
        rows = [row for key, row in results.items() if key.startswith(f"{kind}-")]
        if rows:
            tried, kept = sum(row["count"] for row in rows), sum(row["kept"] for row in rows)
            spreads = statistics.median(row["spread"] for row in rows)
            shares = sorted({row["ballast_share"] for row in rows})
            lines.append(
                [
                    name,
                    ", ".join(f"{100 * share:.2f} %" for share in shares),
                    str(tried),
                    str(kept),
                    f"{100 * kept / tried:.1f} %",
                    str(sum(row["screened_out"] for row in rows)),
                    str(sum(len(row["refused"]) for row in rows)),
                    f"{100 * spreads:.2f} %",
                    f"{statistics.mean(row['seconds_each'] for row in rows):.1f}",
                    _together(kind, kept, tried, rows[0]["device"]),
                ]
            )
    header = ["", "rows done twice", "tried", "kept", "", "screened out", "refused", "spread of a pair", "s each", ""]
    return text_table(header, lines)


def _rows(judging: Judging, options: argparse.Namespace) -> Sequence[Row]:
    judging.device = options.device
    trials = Trials(judging, options.device)
    made = []
    for kind, total, size, about in (("gain", GAIN_TRIALS, GAIN_BATCH, 20.0), ("aa", AA_TRIALS, AA_BATCH, 2.0)):
        for batch in range(total // size):
            run = functools.partial(measure, trials, kind, batch, size)
            made.append(Row(f"{kind}-{batch + 1}", run, EXERCISES, about=about * size))
    return made


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")


if __name__ == "__main__":
    with Judging() as opened:
        rows = functools.partial(_rows, opened)
        beside = ("ops.py", "judging.py")
        sys.exit(main(Benchmark("judge_trials", Path(__file__), rows, table, _options, beside, strict=True)))
