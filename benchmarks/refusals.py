"""Every cheat that has a form for a GPU, through the judge: its verdict, stage and reason; and its honest twin's.

A cheat that is not refused for its reason, or a twin that is refused, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table
from judging import Judging

if TYPE_CHECKING:
    from autokernel.judge.judge import Judge
    from autokernel.records import Verdict
    from autokernel.testing.cheaters import Case

DEADLINE = 6.0  # seconds for a step of the child
EXERCISES = ("judge/*.py", "task/*.py", "languages/*.py", "testing/cheaters/*.py")


def measure(case: Case, judging: Judging, judges: dict[tuple[str, bool], Judge], seen: dict[str, Figures]) -> Figures:
    from autokernel.judge import Opponent, Request

    judge = _judge(case, judging, judges)
    request = Request(level=case.level, deadline_seconds=DEADLINE)
    verdict = judge.verdict(case.source, Opponent("eager"), request)
    found = {**_said(verdict), "expected": _expected(case), "wrong": case.wrong(verdict), "level": case.level}
    if case.twin is not None:
        if case.twin not in seen:  # many cheats have the same twin
            correct = Request(level="correctness", deadline_seconds=DEADLINE)
            seen[case.twin] = _said(judge.verdict(case.twin, Opponent("eager"), correct))
        found["twin"] = seen[case.twin]
        found["twin_accepted"] = seen[case.twin]["verdict"] == "accepted"
    return {**found, "passed": not found["wrong"] and found.get("twin_accepted", True)}


def _judge(case: Case, judging: Judging, judges: dict[tuple[str, bool], Judge]) -> Judge:
    from autokernel.records import Allow
    from autokernel.testing.cheaters import reference

    key = case.task, case.library_calls
    if key not in judges:
        judges[key] = judging.judge(reference(case.task), allow=Allow(library_calls=case.library_calls))
    return judges[key]


def _said(verdict: Verdict) -> Figures:
    return {
        "verdict": verdict.verdict.value,
        "stage": verdict.stage.value,
        "reason": verdict.reason.value,
        "explanation": verdict.explanation,
        "seconds": verdict.seconds,
        "speedup": verdict.timing.speedup if verdict.timing is not None else None,
    }


def _expected(case: Case) -> str:
    outcome = f"{case.verdict} or suspect" if case.suspect else case.verdict
    return f"{outcome} at {'/'.join(case.stages)}: {'/'.join(case.reasons)}"


def table(results: dict[str, Figures]) -> str:
    lines = [
        [
            name,
            row["verdict"],
            row["stage"],
            row["reason"],
            "as expected" if not row["wrong"] else "NOT AS EXPECTED",
            {True: "accepted", False: "REFUSED", None: "-"}[row.get("twin_accepted")],
            f"{row['seconds']:.1f}",
        ]
        for name, row in results.items()
    ]
    words = [f"{name}: {row['wrong']}" for name, row in results.items() if row["wrong"]]
    words += [
        f"{name}, twin: {row['twin']['verdict']} at {row['twin']['stage']}, {row['twin']['reason']}: "
        f"{row['twin']['explanation']}"
        for name, row in results.items()
        if row.get("twin_accepted") is False
    ]
    header = ["kernel", "verdict", "stage", "reason", "", "twin", "s"]
    good = sum(row["passed"] for row in results.values())
    return "\n".join([text_table(header, lines), f"{good} of {len(results)} as they must be", *words])


def _rows(judging: Judging, options: argparse.Namespace) -> list[Row]:
    from autokernel.testing.cheaters import CUDA_CHEATS, CUDA_ODD

    judges: dict[tuple[str, bool], Judge] = {}
    seen: dict[str, Figures] = {}
    return [
        Row(_name(case), functools.partial(measure, case, judging, judges, seen), EXERCISES, about=5)
        for case in (*CUDA_CHEATS, *CUDA_ODD)
    ]


def _name(case: Case) -> str:
    """The case's name as a row's: without the comma that separates rows on the command line."""
    return (case.name if case.twin is not None else f"odd: {case.name}").replace(",", "")


if __name__ == "__main__":
    with Judging() as opened:
        rows = functools.partial(_rows, opened)
        sys.exit(main(Benchmark("refusals", Path(__file__), rows, table, beside=("judging.py",), strict=True)))
