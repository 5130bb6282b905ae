"""What the judge's rules do where the truth is known: simulated devices through screen, test and confirmation.

False keeps in 300 experiments, power by gain and noise, how often a 95 % interval holds the truth, the bias of what is
reported, and the pairs that all this takes. From the judge's own functions; nothing is timed, so it needs no device.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table

NOISES = (0.002, 0.004, 0.006, 0.01, 0.02, 0.04, 0.06)
GAINS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
EXERCISES = ("judge/pairs.py", "judge/thresholds.py", "testing/simulated.py")
RUN = 300  # experiments
CLEAR, POWER = 2.5, 0.9  # a gain of so many times the noise is kept so often
COVERED = 0.93  # of 95 % intervals, at least: a few thousand tries are uncertain by half a percent
SPREAD_EVERY = 10  # candidates: power is the average over what eight pairs may say of the spread


def devices() -> dict[str, Figures]:
    """Keyword arguments of simulated devices that go wrong in their own way."""
    return {
        **{f"noise {100 * noise:g} %": {"noise": noise} for noise in NOISES},
        "heavy tails (t of 3 degrees) 2 %": {"noise": 0.02, "shape": "student"},
        "5 % of blocks take 30 % longer": {"noise": 0.01, "outliers": 0.05},
        "3 % of blocks; the incumbent alone": {"noise": 0.01, "outliers": 0.03, "one_sided": True},
        "the second block takes 2 % longer": {"noise": 0.01, "drift": 0.02},
        "blocks remember (AR 0.8) 2 %": {"noise": 0.02, "memory": 0.8},
    }


def false_keeps(name: str, runs: int) -> Figures:
    from autokernel.testing.simulated import Device, attempts

    found = attempts(Device(seed=1, **devices()[name]), 0.0, runs * RUN, a_run=RUN)
    kept = sum(one.kept for one in found)
    pairs = statistics.mean(sum(one.blocks) for one in found)
    return {"kept_in_300": kept / runs, "runs": runs, "pairs": pairs, "passed": kept / runs <= 0.1}


def power(noise: float, tries: int) -> Figures:
    from autokernel.testing.simulated import Device, attempts

    found: Figures = {"kept": {}, "pairs": {}, "chosen_on": {}, "reported": {}}
    for gain in GAINS:
        made = attempts(Device(noise, seed=2), gain, tries, a_run=SPREAD_EVERY)
        kept = [one for one in made if one.kept]
        found["kept"][str(gain)] = len(kept) / tries
        found["pairs"][str(gain)] = statistics.mean(sum(one.blocks) for one in made)
        if len(kept) > 20:
            found["chosen_on"][str(gain)] = statistics.mean(one.chosen_on - 1 for one in kept if one.chosen_on)
            found["reported"][str(gain)] = statistics.mean(one.estimate - 1 for one in kept if one.estimate)
    wanted = min((gain for gain in GAINS if gain >= CLEAR * noise and gain >= 0.01), default=None)
    found["passed"] = wanted is None or found["kept"][str(wanted)] >= POWER
    return found


def coverage(name: str, tries: int) -> Figures:
    from autokernel.judge.pairs import interval
    from autokernel.testing.simulated import Device

    device = Device(seed=3, **devices()[name])
    found: Figures = {}
    for count in (6, 10, 20):
        bounds = [interval(device.ratios(0.03, count))[1:] for _ in range(tries)]
        found[str(count)] = sum(low <= 1.03 <= high for low, high in bounds) / tries
    found["passed"] = all(share >= COVERED for share in found.values())
    return found


def table(results: dict[str, Figures]) -> str:
    parts = [_false_keeps(results), _power(results), _coverage(results)]
    return "\n\n".join(part for part in parts if part) or "no row was measured"


def _of(results: dict[str, Figures], kind: str) -> dict[str, Figures]:
    return {name.partition(": ")[2]: row for name, row in results.items() if name.startswith(f"{kind}: ")}


def _false_keeps(results: dict[str, Figures]) -> str:
    rows = [[name, f"{row['kept_in_300']:.3f}", f"{row['pairs']:.1f}"] for name, row in _of(results, "false").items()]
    return "False keeps: no candidate is faster\n" + text_table(["device", "kept in 300", "pairs each"], rows)


def _power(results: dict[str, Figures]) -> str:
    rows = [
        [name, *(f"{100 * row['kept'][str(gain)]:.0f} % ({row['pairs'][str(gain)]:.0f})" for gain in GAINS)]
        for name, row in _of(results, "power").items()
    ]
    biases = [
        f"{name}, gain {100 * float(gain):g} %: {100 * row['chosen_on'][gain]:.2f} % chose it, "
        f"{100 * value:.2f} % is reported"
        for name, row in _of(results, "power").items()
        for gain, value in row["reported"].items()
        if float(gain) in (0.01, 0.03)
    ]
    header = ["noise of a pair", *(f"gain {100 * gain:g} %" for gain in GAINS)]
    return f"Power: kept of those with a true gain (pairs each)\n{text_table(header, rows)}\n" + "\n".join(biases)


def _coverage(results: dict[str, Figures]) -> str:
    rows = [
        [name, *(f"{100 * row[count]:.1f} %" for count in ("6", "10", "20"))]
        for name, row in _of(results, "coverage").items()
    ]
    header = ["device", "6 pairs", "10 pairs", "20 pairs"]
    return "Coverage: 95 % intervals that hold the truth\n" + text_table(header, rows)


def _rows(options: argparse.Namespace) -> Sequence[Row]:
    made = [Row(f"false: {name}", functools.partial(false_keeps, name, options.runs), EXERCISES) for name in devices()]
    made += [
        Row(f"power: {100 * noise:g} %", functools.partial(power, noise, options.tries), EXERCISES) for noise in NOISES
    ]
    made += [
        Row(f"coverage: {name}", functools.partial(coverage, name, options.tries), EXERCISES) for name in devices()
    ]
    return made


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=100, help="runs of 300 experiments for each device")
    parser.add_argument("--tries", type=int, default=2000, help="candidates for each gain and noise")


if __name__ == "__main__":
    sys.exit(main(Benchmark("judge_statistics", Path(__file__), _rows, table, _options, strict=True)))
