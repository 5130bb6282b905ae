"""The same kernel against itself, every 25 experiments: if it "wins", the device is noisier than the thresholds."""

from __future__ import annotations

from autokernel.errors import AutokernelError, JudgeUnsound, SandboxDied
from autokernel.execute import Comparison, Side
from autokernel.loop.experiment import Bench
from autokernel.loop.files import write_atomic
from autokernel.loop.folder import RunFolder
from autokernel.loop.state import TaskState
from autokernel.records import SameAgainstSame, Timing

MIN_GAIN = 0.005  # 0.5 %, where the run's configuration says nothing
EVERY = 25
_PAIRS = 8
_TIMES_SPREAD = 3.0


def due(experiment: int) -> bool:
    return experiment % EVERY == 0


def widened(timing: Timing, min_gain: float) -> float:
    """The threshold after a trial of the same against the same. Unchanged when the interval holds 1."""
    if timing.ci_low <= 1.0 <= timing.ci_high:
        return min_gain
    return max(min_gain, _TIMES_SPREAD * abs(timing.speedup - 1.0))


def min_gain(folder: RunFolder) -> float:
    """The threshold in force: what was configured, or what trials of the same against the same widened it to."""
    configured = MIN_GAIN if folder.config.min_gain is None else folder.config.min_gain
    found = [SameAgainstSame.load(path) for path in (folder.path / "verdicts").glob("aa-*.json")]
    return max([configured, *(trial.min_gain_after for trial in found)])


def same_against_same(bench: Bench, state: TaskState, number: int) -> None:
    """Time the task's kernel against itself, widen the threshold if that shows a difference, and note it."""
    side = Side(kind="kernel", source=state.incumbent)
    comparison = Comparison(folder=bench.task_folder(state), first=side, second=side, max_pairs=_PAIRS)
    try:
        timing = bench.executor.compare(comparison).result()
    except (SandboxDied, JudgeUnsound):
        raise
    except AutokernelError as error:
        bench.say(f"  same against same on {state.task.id} could not be timed: {error}")
        return
    before, bench.min_gain = bench.min_gain, widened(timing, bench.min_gain)
    record = SameAgainstSame(task=state.task.id, timing=timing, min_gain_before=before, min_gain_after=bench.min_gain)
    write_atomic(bench.folder.path / "verdicts" / f"aa-{number}.json", record.dump())
    if bench.min_gain > before:
        bench.say(
            f"  the same kernel against itself measured {timing.speedup:.3f}× "
            f"({timing.ci_low:.3f}–{timing.ci_high:.3f}): a gain must now be at least {100 * bench.min_gain:.2g} %"
        )
