"""The whole job on a LLaMA of 1.5 billion weights: what `autokernel optimize` found, and where its time went.

The run is a process of its own, its lines come through as they are written. Then its folder is read: experiments,
fingerprints, kept kernels, winners; each task's share, floor, start and best; the proof's ratios with their bounds.
`--keep FILE.tar.gz` packs what is small of the folder (verdicts, results.tsv, kernels, task.json), up to 8 MB.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
from harness import ROOT, Benchmark, Figures, Row, main, text_table

if TYPE_CHECKING:
    from autokernel.loop.folder import RunFolder
    from autokernel.records import Proof, Task, Trial

TARGET = ROOT / "examples" / "llama_1b.py"
LEAST_FINGERPRINTS, LEAST_WINNERS, OVER_BASELINE, OVER_EAGER = 6, 3, 1.0, 1.10
_MOST_KEPT_BYTES = 8 << 20
_COMMAND = "import sys; from autokernel.cli.main import run; sys.exit(run())"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def measure(options: argparse.Namespace) -> Figures:
    out = options.run or Path(tempfile.mkdtemp(prefix="autokernel-llama-")) / "run"
    words = ["optimize", options.target, "--device", options.device, "--budget", options.budget, "--out", str(out)]
    status, seconds, lines = stream(words, options.timeout)
    found: Figures = {"command": "autokernel " + " ".join(words), "exit_status": status, "wall_seconds": seconds}
    found["output"] = lines
    if not (out / "run.toml").exists():
        raise RuntimeError(f"it ended with status {status} before there was a run:\n" + "\n".join(last(lines)))
    found |= read(out)
    found["parts"] = _parts(found, seconds)
    if options.keep is not None:
        found["kept_files"] = keep(out, options.keep)
    if status not in (0, 1):
        raise RuntimeError(f"it ended with status {status}:\n" + "\n".join(last(lines)))
    return found | _limits(found)


def stream(words: list[str], timeout: float) -> tuple[int, float, list[tuple[float, str]]]:
    """Run the command line; its status, its seconds, and its lines, each with the second it came at."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "160", "NO_COLOR": "1"}
    begin = time.monotonic()
    lines: list[tuple[float, str]] = []
    command = [sys.executable, "-c", _COMMAND, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            passed = round(time.monotonic() - begin, 2)
            print(f"{passed:7.1f}  {line}", end="", flush=True)
            lines.append((passed, _COLOURS.sub("", line.rstrip())))
            if passed > timeout:
                process.terminate()  # it leaves a run that can be read and resumed
                timeout = float("inf")
    return process.returncode, time.monotonic() - begin, lines


def last(lines: list[tuple[float, str]]) -> list[str]:
    return [line for _, line in lines[-30:]]


def read(path: Path) -> Figures:
    """The figures of a run's folder, finished or not."""
    from autokernel.api.run import Run
    from autokernel.loop.folder import RunFolder

    view = Run.load(path).view()
    folder = RunFolder.open(path)
    try:
        trials = folder.trials
        found: Figures = {
            "experiments": len(trials),
            "fingerprints": len({task.fingerprint for task in folder.tasks()}),
            "fingerprints_tried": len({task.fingerprint for task in folder.tasks() if _tried(task, trials)}),
            "tasks_cut_out": len(folder.tasks()),
            "tasks_tried": sum(_tried(task, trials) for task in folder.tasks()),
            "kept": sum(trial.decision == "kept" for trial in trials),
            "decisions": dict(Counter(_short(trial.reason) for trial in trials).most_common(20)),
            "tasks": [_task(folder, task) for task in folder.tasks()],
        }
        profile = folder.profile()
        found["model_us"] = profile.uninstrumented_us
        found["regions_without_task"] = [
            {"title": r.title, "share": r.share, "reason": r.reason} for r in profile.regions if r.task is None
        ]
        found["loop_seconds"] = sum(trial.seconds for trial in trials)
        found["stage_seconds"] = _stage_seconds(path)
    finally:
        folder.close()
    found["winners"] = sum(task["wins"] for task in found["tasks"])
    found["proof"] = view.proof.model_dump(mode="json", by_alias=True) if view.proof is not None else None
    found["ratios"] = _ratios(view.proof)
    found["report"] = _report(view)
    return found


def _tried(task: Task, trials: Sequence[Trial]) -> bool:
    return any(trial.task == task.id for trial in trials)


def _short(reason: str) -> str:
    return re.split(r"[:(;,]", reason)[0].strip()[:60]


def _task(folder: RunFolder, task: Task) -> Figures:
    """A task's line: its share of the model, the floor, where it began and its best, one occurrence."""
    row = next((r for r in folder.profile().regions if r.task == task.id), None)
    first = folder.first_incumbent(task.id)
    winner = folder.winners().get(task.id)
    timing = winner[1].timing if winner is not None else None
    start = None
    if first is not None and first.timing is not None:
        start = first.timing.incumbent_us if first.kind == "eager" else first.timing.candidate_us
    ahead = None
    if winner is not None and first is not None and first.kind in winner[1].baselines:
        ahead = winner[1].baselines[first.kind].speedup
    mine = [trial for trial in folder.trials if trial.task == task.id]
    return {
        "task": task.id,
        "title": task.title,
        "kind": task.kind,
        "occurrences": task.occurrences,
        "share": row.share if row is not None else None,
        "floor_us": timing.floor_us if timing is not None else (row.floor_us / row.occurrences if row else None),
        "first": first.kind if first is not None else None,
        "start_us": start,
        "best_us": timing.candidate_us if timing is not None else None,
        "speedup": ahead,
        "pct_of_ceiling": timing.pct_of_ceiling if timing is not None else None,
        "experiments": len(mine),
        "kept": sum(trial.decision == "kept" for trial in mine),
        "wins": winner is not None and winner[1].wins,
    }


def _stage_seconds(path: Path) -> dict[str, float]:
    """Seconds in each stage of judging, all verdicts together."""
    from autokernel.records import Verdict

    total: Counter[str] = Counter()
    for file in (path / "verdicts").glob("*.json"):
        if file.stem.isdigit():
            verdict = Verdict.load(file)
            total.update({stage.name.value: stage.seconds for stage in verdict.stages})
    return {name: round(seconds, 2) for name, seconds in total.items()}


def _ratios(proof: Proof | None) -> list[Figures]:
    """Ours against each baseline; above 1 we are faster."""
    if proof is None:
        return []
    return [
        {"baseline": row.name, "ms": row.ms, "ratio": row.ratio, "ci_low": row.ci_low, "ci_high": row.ci_high}
        for row in proof.baselines
    ]


def _report(view: Any) -> str:
    import io

    from rich.console import Console

    from autokernel.report import summary

    console = Console(file=io.StringIO(), width=160, no_color=True)
    console.print(summary(view))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def _parts(found: Figures, seconds: float) -> Figures:
    """Wall seconds: until the first experiment, experiments, between them, and what came after the last."""
    judged = sum(found["stage_seconds"].values())
    return {
        "wall": round(seconds, 1),
        "experiments": round(found["loop_seconds"], 1),
        "of these in judging": round(judged, 1),
        "everything else (capture, profile, first incumbents, proof)": round(seconds - found["loop_seconds"], 1),
    }


def _limits(found: Figures) -> Figures:
    proof = found["proof"] or {}
    ratios = {row["baseline"]: row for row in found["ratios"]}
    best = ratios.get(proof.get("best_baseline", ""))
    eager = ratios.get("eager")
    within = {
        f"≥ {LEAST_FINGERPRINTS} fingerprints tried": found["fingerprints_tried"] >= LEAST_FINGERPRINTS,
        f"winners on ≥ {LEAST_WINNERS}": found["winners"] >= LEAST_WINNERS,
        f"≥ {OVER_BASELINE:.2f} × best baseline": best is not None and best["ci_low"] >= OVER_BASELINE,
        f"≥ {OVER_EAGER:.2f} × eager": eager is not None and eager["ci_low"] >= OVER_EAGER,
    }
    return {"within": within, "passed": all(within.values())}


def keep(path: Path, target: Path) -> list[str]:
    """Pack the small files of a run, smallest first, until the limit; the names of those that are in."""
    files = [file for file in path.rglob("*") if file.is_file() and ".git" not in file.relative_to(path).parts]
    wanted = [file for file in files if file.suffix in (".json", ".tsv", ".toml", ".py", ".md")]
    names, total = [], 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for file in sorted(wanted, key=lambda file: file.stat().st_size):
            total += file.stat().st_size
            if total > _MOST_KEPT_BYTES:
                break
            names.append(file.relative_to(path).as_posix())
            archive.add(file, arcname=f"run/{names[-1]}")
    return names


def table(results: dict[str, Figures]) -> str:
    return "\n\n".join(_one(row) for row in results.values()) or "no run"


def _one(row: Figures) -> str:
    lines = [
        [
            task["task"],
            f"{task['occurrences']}",
            _format(task["share"], "{:.1%}"),
            _format(task["floor_us"], "{:.1f}"),
            _format(task["start_us"], "{:.1f}"),
            task["first"] or "-",
            _format(task["best_us"], "{:.1f}"),
            _format(task["speedup"], "{:.2f}×"),
            f"{task['kept']}/{task['experiments']}",
            "wins" if task["wins"] else "",
        ]
        for task in row["tasks"]
    ]
    header = ["task", "times", "share", "floor µs", "start µs", "by", "best µs", "alone", "kept", ""]
    words = [
        f"{row['experiments']} experiments on {row['fingerprints_tried']} fingerprints ({row['tasks_tried']} tasks) "
        f"of {row['fingerprints']} ({row['tasks_cut_out']}), {row['kept']} kept, "
        f"winners on {row['winners']} tasks; {row['wall_seconds']:.0f} s",
        *(
            f"against {one['baseline']} ({one['ms']:.2f} ms): {one['ratio']:.3f} "
            f"[{one['ci_low']:.3f}, {one['ci_high']:.3f}]"
            for one in row["ratios"]
        ),
        "wall seconds: " + "; ".join(f"{name} {value}" for name, value in row["parts"].items()),
        "judging: " + ", ".join(f"{name} {value}" for name, value in row["stage_seconds"].items()),
        "; ".join(f"{name}: {'reached' if good else 'MISSED'}" for name, good in row["within"].items()),
    ]
    return text_table(header, lines) + "\n" + "\n".join(words)


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=str(TARGET))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", default="6m", help="of the search, as optimize takes it")
    parser.add_argument("--timeout", type=float, default=1e9, help="seconds after which the run is asked to stop")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="where the run is put (default: a temporary folder)")
    parser.add_argument("--keep", type=Path, metavar="FILE.tar.gz", help="pack the run's small files here")


def _rows(options: argparse.Namespace) -> list[Row]:
    return [Row("optimize", functools.partial(measure, options))]


if __name__ == "__main__":
    sys.exit(main(Benchmark("llama", Path(__file__), _rows, table, _options)))
