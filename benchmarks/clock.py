"""Does the judge's clock agree with itself and with others? Ten children a kernel, by the parent's clock.

For each operation: the parent's time a call in each of ten fresh children (median, spread, deviation), the child's own
claim, then `do_bench` and the profiler's kernel duration, from a process of its own while this one leaves the GPU idle.
The limits: spread ≤ 0.5 % for the median operation and ≤ 1 % for the worst; within 1 % of the child's events; within
3 % of the profiler's kernel duration. `--ncu` adds Nsight Compute's duration where `ncu` is on the path.

Kernels under 4 µs are shown, not held to the limits: profiling adds 0.1 to 0.2 µs to each.
The profiler runs the kernels as the judge does, in a CUDA graph over as many distinct sets. In a graph a kernel's start
may overlap its predecessor's end, or wait for it: `step` is from start to start, what a slope over many calls measures.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table
from judging import Judging
from ops import CLOCK_OPS, Op

DEADLINE = 60.0
MEDIAN_SPREAD, WORST_SPREAD, CLAIM, PROFILER = 0.005, 0.01, 0.01, 0.03
SHORTEST_US = 4.0  # what the limits are claimed for
EXERCISES = ("judge/*.py", "task/file.py", "languages/triton/*.py")


def measure(op: Op, options: argparse.Namespace, judging: Judging) -> Figures:
    """The row of one operation."""
    reference = judging.write(f"{op.name}.py", op.reference)
    kernel = judging.write(f"{op.name}-kernel.py", op.kernel)
    found = _judged(op, reference, options, judging)
    found |= _alone(reference, kernel, found["sets"])
    if options.ncu:
        found["ncu_us"] = _ncu(op, reference, kernel, found["sets"])
    return found | _agreement(found)


def _judged(op: Op, reference: Path, options: argparse.Namespace, judging: Judging) -> Figures:
    """Blocks in fresh children, over one plan. Not `--verified`: the slope alone, as for the judge's own opponents."""
    from autokernel.judge import Opponent

    judge = judging.judge(reference)
    kernel, resources = judge.kernels.build(op.kernel)
    contest = judge.contest(DEADLINE)
    trusted = not options.verified
    _, plan = contest.planned(judge.kernels.opponent(Opponent("eager")), kernel, trusted)
    blocks = [contest.block(kernel, plan, trusted) for _ in range(options.children)]
    contest.fresh_values()  # gives the buffers back
    return {
        "parent_us": [1e6 * block.seconds for block in blocks],
        "claimed_us": [1e6 * block.claimed for block in blocks],
        "overhead_us": [1e6 * block.overhead for block in blocks],
        "sets": plan.sets,
        "resources": resources.model_dump(),
        "isolation": judging.sandbox.isolation,
    }


def _alone(reference: Path, kernel: Path, sets: int) -> Figures:
    command = [sys.executable, str(Path(__file__).with_name("alone.py")), str(reference), str(kernel)]
    done = subprocess.run([*command, "--sets", str(sets)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"timing it alone failed:\n{done.stderr[-3000:]}")
    made: Figures = json.loads(done.stdout.splitlines()[-1])
    return made


def _ncu(op: Op, reference: Path, kernel: Path, sets: int) -> float | None:
    """Median duration by Nsight Compute, in microseconds; clocks and caches are left as they are."""
    if shutil.which("ncu") is None:
        return None
    command = [
        "ncu", "--clock-control", "none", "--cache-control", "none", "--metrics", "gpu__time_duration.sum",
        "--csv", "--print-units", "base", "-k", op.kernel_name, "--launch-skip", "2", "--launch-count", "20",
        sys.executable, str(Path(__file__).with_name("alone.py")), str(reference), str(kernel),
        "--what", "once", "--sets", str(max(sets, 8)),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    values = [float(row["Metric Value"].replace(",", "")) for row in csv.DictReader(lines)]
    if done.returncode or not values:
        raise RuntimeError(f"ncu failed:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return statistics.median(values) / 1e3  # ns


def _agreement(found: Figures) -> Figures:
    """The differences, as fractions, and whether each is within its limit."""
    times: list[float] = found["parent_us"]
    middle = statistics.median(times)
    claims = [claim / time - 1 for claim, time in zip(found["claimed_us"], times, strict=True)]
    figures = {
        "median_us": middle,
        "spread": (max(times) - min(times)) / middle,
        "deviation": statistics.stdev(times) / middle if len(times) > 1 else 0.0,
        "claim": statistics.median(claims),
        "worst_claim": max(claims, key=abs),
        "profiler": found["profiler_graph"]["kernel_us"] / middle - 1,
        "step": found["profiler_graph"]["start_to_start_us"] / middle - 1,
        "do_bench_offset_us": found["do_bench"]["median_us"] - middle,
    }
    within = {
        "spread": figures["spread"] <= WORST_SPREAD,
        "claim": abs(figures["claim"]) <= CLAIM,
        "profiler": abs(figures["profiler"]) <= PROFILER,
    }
    claimed = middle >= SHORTEST_US
    return {**figures, "within": within, "held": claimed, "passed": all(within.values()) or not claimed}


def table(results: dict[str, Figures]) -> str:
    header = [
        "operation",
        "parent µs",
        "spread",
        "sd",
        "claim",
        "profiler µs",
        "diff",
        "step",
        "do_bench µs",
        "+µs",
        "",
    ]
    lines = []
    for name, row in sorted(results.items(), key=lambda item: item[1]["median_us"]):
        missed = [what for what, good in row["within"].items() if not good]
        lines.append(
            [
                name,
                f"{row['median_us']:.2f}",
                f"{row['spread']:.2%}",
                f"{row['deviation']:.2%}",
                f"{row['claim']:+.2%}",
                f"{row['profiler_graph']['kernel_us']:.2f}",
                f"{row['profiler']:+.1%}",
                f"{row['step']:+.1%}",
                f"{row['do_bench']['median_us']:.2f}",
                f"{row['do_bench_offset_us']:+.1f}",
                ("ok" if not missed else "misses " + ", ".join(missed)) + ("" if row["held"] else " (short)"),
            ]
        )
    if not lines:
        return "no row was measured"
    held = [row for row in results.values() if row["held"]]
    return text_table(header, lines) + ("\n" + _overall(held) if held else "")


def _overall(rows: Sequence[Figures]) -> str:
    middle = statistics.median(row["spread"] for row in rows)
    worst = max(row["spread"] for row in rows)
    words = [
        f"spread: median operation {middle:.2%} ({_limit(middle, MEDIAN_SPREAD)})",
        f"worst {worst:.2%} ({_limit(worst, WORST_SPREAD)})",
        f"claims within {max(abs(row['claim']) for row in rows):.2%}",
        f"profiler within {max(abs(row['profiler']) for row in rows):.1%}",
    ]
    return "; ".join(words)


def _limit(value: float, limit: float) -> str:
    return f"limit {limit:.1%}: {'reached' if value <= limit else 'MISSED'}"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--children", type=int, default=10, help="fresh children for each operation")
    parser.add_argument("--verified", action="store_true", help="time as candidates are: outputs compared, too")
    parser.add_argument("--ncu", action="store_true", help="add Nsight Compute's duration, where it is installed")


def _rows(judging: Judging, options: argparse.Namespace) -> list[Row]:
    return [Row(op.name, functools.partial(measure, op, options, judging), EXERCISES, about=15) for op in CLOCK_OPS]


if __name__ == "__main__":
    with Judging() as opened:
        beside = ("ops.py", "alone.py", "judging.py")
        rows = functools.partial(_rows, opened)
        sys.exit(main(Benchmark("clock", Path(__file__), rows, table, _options, beside)))
