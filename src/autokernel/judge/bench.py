"""`autokernel bench`: one kernel file against one reference; and the sandbox that judging is done in."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from autokernel.errors import AutokernelError, JudgeUnsound, KernelInvalid, SandboxDied, TargetNotFound
from autokernel.judge import Opponent, Request
from autokernel.judge.controls import check_controls
from autokernel.judge.judge import Judge, OnStage
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.seeds import Seeds
from autokernel.profile.ceilings import measure_ceilings
from autokernel.records import Outcome, StageResult, Timing, Verdict
from autokernel.task import LoadedTask

Say = Callable[[str], None]


@contextlib.contextmanager
def open_sandbox(
    isolation: Literal["auto", "bubblewrap", "plain"] = "auto", threads: int | None = None, device: str = "cpu"
) -> Iterator[Sandbox]:
    """A sandbox with a private folder for compiled kernels; children may use half of this machine's memory.

    `threads`: what a kernel may use, by default every core that this process may run on. `device`: "cpu" or "cuda:N".
    Raises SandboxUnavailable, SandboxDied.
    """
    count = threads or len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    with (
        tempfile.TemporaryDirectory(prefix="autokernel-judge-") as folder,
        Sandbox(
            isolation=isolation, threads=count, cpp_cache=Path(folder), memory_limit_bytes=memory, device=device
        ) as sandbox,
    ):
        yield sandbox


def run_bench(
    reference: Path,
    kernel: Path,
    *,
    isolation: Literal["auto", "bubblewrap", "plain"] = "auto",
    threads: int | None = None,
    inductor: bool = True,
    device: str = "cpu",
    say: Say = lambda line: None,
    on_stage: OnStage | None = None,
) -> Verdict:
    """Judge the kernel file, whether it is faster or not, and time it against eager and Inductor.

    `device`: where a KernelBench-form file is run; a task folder names its own class.
    `reference`: a task folder or a KernelBench-form file; `kernel`: a kernel file, or one that defines `ModelNew`.
    `verdict.timing` is against eager, `verdict.baselines` has both where they could be timed (Inductor costs a
    compilation of up to 20 s: `inductor=False` leaves it out). `say` gets a line for each stage as it ends.
    Raises TargetNotFound, TargetInvalid, BrokenFile, KernelInvalid, NoCompiler, JudgeUnsound.
    """
    source = _read(kernel)
    loaded = load_reference(reference, device)
    seeds = Seeds.fresh()

    def ended(result: StageResult) -> None:
        say(stage_line(result))
        if on_stage is not None:
            on_stage(result)

    where = device if loaded.task.device_class == "cuda" and device != "cpu" else loaded.task.device_class
    with open_sandbox(isolation, threads, where) as sandbox:
        ceilings = measure_ceilings(where, sandbox.threads)
        check_controls(sandbox, seeds)
        judge = Judge(loaded, sandbox, seeds=seeds, ceilings=ceilings, on_stage=ended)
        verdict = judge.verdict(source, Opponent("eager"), Request(drop_slow=False))
        if verdict.verdict is Outcome.accepted and verdict.timing is not None:
            verdict = _with_baselines(judge, verdict, verdict.timing, source, inductor)
        return verdict


def _with_baselines(judge: Judge, verdict: Verdict, timing: Timing, source: str, inductor: bool) -> Verdict:
    found: dict[Literal["eager", "inductor"], Timing] = {"eager": timing}
    warnings = verdict.warnings
    if inductor:
        try:
            found["inductor"] = judge.compare(Opponent("inductor"), Opponent("kernel", source), pairs=timing.pairs)
        except (SandboxDied, JudgeUnsound):
            raise
        except AutokernelError as error:
            warnings = (*warnings, f"not timed against Inductor: {error}")
    return verdict.model_copy(update={"baselines": found, "warnings": warnings})


def load_reference(path: Path, device: str = "cpu") -> LoadedTask:
    """A task folder (for the device it was cut on), or a KernelBench-form file as a task for `device`.

    Raises TargetNotFound, and what reading it raises.
    """
    from autokernel.task.file import from_file
    from autokernel.task.folder import load

    if not path.exists():
        raise TargetNotFound(path=path)
    return load(path) if path.is_dir() else from_file(path, device)


def stage_line(result: StageResult) -> str:
    """ "  smoke        passed    0.12 s  2 calls with different values". Why one failed is the verdict's to say."""
    detail = result.detail if result.status != "failed" else ""
    return f"  {result.name:12} {result.status:7} {result.seconds:6.2f} s  {detail}".rstrip()


def _read(kernel: Path) -> str:
    try:
        return kernel.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelInvalid(path=kernel, detail=error) from error
