"""Honest kernels and mutants through the judge's comparison: how many of which are refused, by kind and dtype.

Kinds, orders of summation and mutants are those of `autokernel.testing.mutants`; every row repeats all shapes with new
seeds. No kernel is compiled and nothing is timed.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table

EXERCISES = ("judge/oracle.py", "judge/tolerance.py", "judge/cases.py", "task/*.py", "testing/mutants.py")


def measure(kind: str, dtype: str, repeats: int) -> Figures:
    from autokernel.testing.mutants import SHAPES, trials

    tried: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    stages: dict[str, Counter[str]] = {}
    for shape in SHAPES * repeats:
        for trial in trials(kind, dtype, shape):
            name = "honest" if trial.honest else "within rounding" if trial.within_rounding else trial.kernel
            tried[name] += 1
            refused[name] += bool(trial.stage)
            if trial.stage:
                stages.setdefault(name, Counter())[trial.stage] += 1
    return {
        "tried": dict(tried),
        "refused": dict(refused),
        "stages": {name: dict(counts.most_common()) for name, counts in stages.items()},
        "passed": refused["honest"] < 0.005 * tried["honest"],
    }


def table(results: dict[str, Figures]) -> str:
    names = list(dict.fromkeys(name for row in results.values() for name in row["tried"]))
    lines = []
    for name in names:
        rows = {key: row for key, row in results.items() if name in row["tried"]}
        by_dtype = {
            dtype: [row for key, row in rows.items() if key.endswith(dtype)]
            for dtype in ("float32", "bfloat16", "float16")
        }
        cells = [_share(of, name) for of in by_dtype.values()]
        stages: Counter[str] = Counter()
        for row in rows.values():
            stages.update(row["stages"].get(name, {}))
        lines.append([name, *cells, ", ".join(f"{stage} {count}" for stage, count in stages.most_common(3))])
    return text_table(["kernel", "float32", "bfloat16", "float16", "refused on"], lines)


def _share(rows: Sequence[Figures], name: str) -> str:
    tried, refused = (sum(row[what].get(name, 0) for row in rows) for what in ("tried", "refused"))
    return f"{100 * refused / tried:.1f} % of {tried}" if tried else "-"


def _rows(options: argparse.Namespace) -> list[Row]:
    from autokernel.testing.mutants import KINDS

    return [
        Row(f"{name} {dtype}", functools.partial(measure, name, dtype, options.repeats), EXERCISES)
        for name, kind in KINDS.items()
        for dtype in kind.only
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="times that every shape is tried")


if __name__ == "__main__":
    sys.exit(main(Benchmark("judge_mutants", Path(__file__), _rows, table, _options, strict=True)))
