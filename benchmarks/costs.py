"""What a candidate costs in wall time, compiling excluded: refused, screened out, kept. Which stage takes it.

The judge of a task is made once, as in a run, and has judged one kernel before: what the first one pays (its graphs,
its buffers) is given apart. Each case is judged three times, as a text of its own every time. Kept and screened out
are against a kernel, as most experiments of a run are: twice the work loses to one, and one wins over twice the work.
A keep whose gain is smaller takes more pairs; `a pair` times the judge's most (25) and the confirmation bound it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table
from judging import Judging
from ops import Op, residual_norm, softmax

if TYPE_CHECKING:
    from autokernel.judge import Opponent
    from autokernel.judge.judge import Judge
    from autokernel.records import Verdict

LIMITS = {"refused": 1.0, "screened out": 1.5, "kept": 25.0}  # seconds
REPEATS = 3
EXERCISES = ("judge/*.py", "task/*.py", "languages/*.py")
OPS = (softmax(4096, 4096), residual_norm(2048, 2048))


def measure(op: Op, case: str, judging: Judging, judges: dict[str, tuple[Judge, float]]) -> Figures:
    judge, first = _judge(op, judging, judges)
    opponent, source = _sides(op, case)
    judge.kernels.opponent(opponent)  # compiled before the clock runs
    verdicts = [
        _judged(judge, f"{source}\n# text {number} of {time.time_ns()}\n", opponent) for number in range(REPEATS)
    ]
    for verdict in verdicts:
        _expect(case, verdict)
    seconds = [verdict.seconds - _compiling(verdict) for verdict in verdicts]
    stages: dict[str, list[float]] = {}
    for verdict in verdicts:
        for stage in verdict.stages:
            stages.setdefault(stage.name, []).append(stage.seconds)
    between = [v.seconds - sum(stage.seconds for stage in v.stages) for v in verdicts]
    timing = verdicts[-1].timing
    return {
        "seconds": seconds,
        "median_seconds": statistics.median(seconds),
        "limit": LIMITS[case],
        "passed": statistics.median(seconds) <= LIMITS[case],
        "compile_seconds": [_compiling(verdict) for verdict in verdicts],
        "stages": {name: statistics.median(values) for name, values in stages.items()},
        "between_stages": statistics.median(between),
        "first_kernel_seconds": first,
        "speedup": timing.speedup if timing is not None else None,
        "pairs": timing.pairs if timing is not None else None,
        "details": {stage.name: stage.detail for stage in verdicts[-1].stages},
    }


def _judge(op: Op, judging: Judging, judges: dict[str, tuple[Judge, float]]) -> tuple[Judge, float]:
    """The task's judge, which has judged a right kernel; and the seconds that took, compiling excluded."""
    from autokernel.judge import Opponent, Request
    from autokernel.records import Outcome

    if op.name not in judges:
        judge = judging.judge(judging.write(f"{op.name}.py", op.reference), ceilings=True)
        verdict = judge.verdict(op.kernel, Opponent("eager"), Request(level="screen", drop_slow=False))
        if verdict.verdict is not Outcome.accepted:
            raise RuntimeError(f"the right kernel of {op.name} is {verdict.verdict}: {verdict.explanation}")
        judges[op.name] = judge, verdict.seconds - _compiling(verdict)
    return judges[op.name]


def _sides(op: Op, case: str) -> tuple[Opponent, str]:
    """The kernel to beat, and the candidate."""
    from autokernel.judge import Opponent

    if case == "refused":
        return Opponent("kernel", op.kernel), op.kernel.replace("1e-5", "0.5").replace("tl.sum(part, 0)", "width")
    if case == "screened out":
        return Opponent("kernel", op.kernel), twice(op.kernel)
    return Opponent("kernel", twice(op.kernel)), op.kernel


def twice(source: str) -> str:
    """The same kernel, launched twice."""
    once = source.replace("def launch(", "def once(")
    return f"{once}\n\ndef launch(*tensors):\n    once(*tensors)\n    once(*tensors)\n"


def _judged(judge: Judge, source: str, opponent: Opponent) -> Verdict:
    from autokernel.judge import Request

    return judge.verdict(source, opponent, Request(level="full"))


def _expect(case: str, verdict: Verdict) -> None:
    from autokernel.records import Outcome, Reason

    good = {
        "refused": verdict.verdict is Outcome.rejected and verdict.reason is Reason.wrong_values,
        "screened out": verdict.verdict is Outcome.rejected and verdict.reason is Reason.too_slow,
        "kept": verdict.timing is not None and verdict.timing.confirmed,
    }
    if not good[case]:
        words = f"{verdict.verdict} at {verdict.stage}, {verdict.reason}: {verdict.explanation}"
        raise RuntimeError(f"the kernel that should be {case} is {words}")


def _compiling(verdict: Verdict) -> float:
    return sum(stage.seconds for stage in verdict.stages if stage.name == "compile")


def table(results: dict[str, Figures]) -> str:
    lines = [
        [
            name,
            f"{row['median_seconds']:.2f}",
            " ".join(f"{value:.2f}" for value in row["seconds"]),
            f"{row['limit']:.1f}",
            "ok" if row["passed"] else "MISSED",
            f"{statistics.median(row['compile_seconds']):.2f}",
            str(row["pairs"] or "-"),
        ]
        for name, row in results.items()
    ]
    totals = text_table(["case", "seconds", "each", "limit", "", "compile", "pairs"], lines)
    names = list(dict.fromkeys(stage for row in results.values() for stage in row["stages"]))
    header = ["seconds in", *names, "between", "first kernel"]
    parts = [
        [
            name,
            *(f"{row['stages'][stage]:.2f}" if stage in row["stages"] else "-" for stage in names),
            f"{row['between_stages']:.2f}",
            f"{row['first_kernel_seconds']:.2f}",
        ]
        for name, row in results.items()
    ]
    return f"{totals}\n\n{text_table(header, parts)}"


def _rows(judging: Judging, options: argparse.Namespace) -> list[Row]:
    judges: dict[str, tuple[Judge, float]] = {}
    about = {"refused": 10.0, "screened out": 10.0, "kept": 40.0}
    return [
        Row(f"{op.name} {case}", functools.partial(measure, op, case, judging, judges), EXERCISES, about[case])
        for op in OPS
        for case in LIMITS
    ]


if __name__ == "__main__":
    with Judging() as opened:
        rows = functools.partial(_rows, opened)
        sys.exit(main(Benchmark("costs", Path(__file__), rows, table, beside=("ops.py", "judging.py"))))
