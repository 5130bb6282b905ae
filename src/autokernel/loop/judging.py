"""The executor of a run: one sandbox for all tasks, one judge for each, opened when first needed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autokernel import settings
from autokernel.execute import Comparison, Job, Side
from autokernel.execute.local import LocalExecutor
from autokernel.judge import Opponent, Request
from autokernel.judge.seeds import Seeds
from autokernel.loop.folder import RunFolder
from autokernel.records import Ceilings, StageResult, Timing, Verdict
from autokernel.task import LoadedTask

if TYPE_CHECKING:
    from autokernel.judge.judge import Judge
    from autokernel.judge.sandbox import Sandbox

DEADLINE = 30.0  # for any single step of a child in a comparison, seconds


class JudgeBench:
    """A `Judge` behind the executor's door."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def judge(self, job: Job) -> Verdict:
        request = Request(
            level=job.level,
            min_gain=job.min_gain,
            max_pairs=job.max_pairs,
            spread=job.spread,
            deadline_seconds=job.deadline_seconds,
            drop_slow=job.drop_slow,
        )
        return self._judge.verdict(job.source, _opponent(job.opponent), request)

    def compare(self, comparison: Comparison) -> Timing:
        first, second = _opponent(comparison.first), _opponent(comparison.second)
        return self._judge.compare(first, second, pairs=comparison.max_pairs, deadline=DEADLINE)

    def prefetch(self, sources: Sequence[str]) -> None:
        self._judge.kernels.prefetch(sources)

    def rest(self) -> None:
        """On a GPU the sets of a task may be gigabytes, and are made anew in a second."""
        self._judge.rest()

    def close(self) -> None:
        """A judge holds nothing of its own; the sandbox is the executor's."""


class _Benches:
    """Opens benches over one sandbox, which starts with the first."""

    def __init__(
        self,
        folder: RunFolder,
        tasks: Mapping[str, LoadedTask],
        seeds: Seeds,
        say: Callable[[str], None],
        on_stage: Callable[[StageResult], None] | None,
    ) -> None:
        profile = folder.profile()
        wanted = folder.config
        self._isolation = settings.load().isolation if wanted.isolation == "auto" else wanted.isolation
        self._threads = wanted.threads or profile.threads  # the settings' were taken when the run was made
        self._ceilings: Ceilings = profile.ceilings
        self._device = wanted.device
        self._tasks, self._seeds, self._say, self._on_stage = tasks, seeds, say, on_stage
        self._sandbox: Sandbox | None = None
        self._libraries: tempfile.TemporaryDirectory[str] | None = None

    def open(self, path: Path) -> JudgeBench:
        from autokernel.judge.judge import Judge
        from autokernel.task.folder import load

        loaded = self._tasks.get(path.name) or load(path)
        judge = Judge(loaded, self._started(), seeds=self._seeds, ceilings=self._ceilings, on_stage=self._on_stage)
        return JudgeBench(judge)

    def close(self) -> None:
        if self._device != "cpu":
            from autokernel.judge import inductor

            inductor.stop()  # its process holds memory of the device that whoever comes next may want
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
        if self._libraries is not None:
            self._libraries.cleanup()
            self._libraries = None

    def _started(self) -> Sandbox:
        from autokernel.judge.controls import check_controls
        from autokernel.judge.sandbox import Sandbox

        if self._sandbox is None:
            # what children may read of the compiled kernels: this run's own, not the user's whole cache
            self._libraries = self._libraries or tempfile.TemporaryDirectory(prefix="autokernel-kernels-")
            libraries = Path(self._libraries.name)
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
            sandbox = Sandbox(
                isolation=self._isolation,
                threads=self._threads,
                cpp_cache=libraries,
                memory_limit_bytes=memory,
                device=self._device,
            )
            if sandbox.weakness:
                self._say(f"judging without bubblewrap, which is weaker: {sandbox.weakness}")
            sandbox.__enter__()
            try:
                check_controls(sandbox, self._seeds)
            except BaseException:
                sandbox.close()
                raise
            self._sandbox = sandbox
        return self._sandbox


def local_executor(
    folder: RunFolder,
    *,
    seeds: Seeds,
    tasks: Mapping[str, LoadedTask] | None = None,
    say: Callable[[str], None] = lambda line: None,
    on_stage: Callable[[StageResult], None] | None = None,
) -> LocalExecutor:
    """Judging on this device, as the run's configuration, the settings and the profile say. Close it after use.

    `tasks`: those already loaded; others are loaded from the run. The executor must be used from one thread, the one
    that judges first, and before it does, the judge must tell a right control from a wrong one. Raises BadSetting; a
    job raises JudgeUnsound, SandboxUnavailable, SandboxDied, NoCompiler.
    """
    benches = _Benches(folder, tasks or {}, seeds, say, on_stage)
    return LocalExecutor(benches.open, on_close=benches.close)


def _opponent(side: Side) -> Opponent:
    return Opponent(side.kind, side.source)
