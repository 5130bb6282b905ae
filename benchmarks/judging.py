"""One sandbox for all rows of a benchmark, opened by the first that needs it; judges of tasks on its device."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from autokernel.judge.judge import Judge
    from autokernel.judge.sandbox import Sandbox
    from autokernel.records import Allow, Ceilings

DEVICE = "cuda:0"


class Judging(contextlib.ExitStack):
    """A context: what was opened in it is closed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.device = "cuda"  # or "cpu"; chosen before anything is opened
        self._sandbox: Sandbox | None = None
        self._folder: Path | None = None
        self._ceilings: Ceilings | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    @property
    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            from autokernel.judge.bench import open_sandbox

            self._sandbox = self.enter_context(open_sandbox(device=self._where))
        return self._sandbox

    @property
    def _where(self) -> str:
        return DEVICE if self.device == "cuda" else self.device

    @property
    def folder(self) -> Path:
        """A folder that is gone afterwards."""
        if self._folder is None:
            made = tempfile.TemporaryDirectory(prefix="autokernel-benchmark-")
            self._folder = Path(self.enter_context(made))
        return self._folder

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def judge(self, reference: Path, *, ceilings: bool = False, allow: Allow | None = None) -> Judge:
        """The judge of a KernelBench-form file's task on the device. `ceilings`: with its floors."""
        from autokernel.judge.judge import Judge
        from autokernel.judge.seeds import Seeds
        from autokernel.profile.ceilings import measure_ceilings
        from autokernel.task.file import from_file

        if ceilings and self._ceilings is None:
            self._ceilings = measure_ceilings(self._where, self.sandbox.threads)
        loaded = from_file(reference, device=self.device)
        if allow is not None:
            loaded = dataclasses.replace(loaded, task=loaded.task.model_copy(update={"allow": allow}))
        return Judge(loaded, self.sandbox, seeds=Seeds.fresh(), ceilings=self._ceilings if ceilings else None)
