"""An author that replays a folder of kernel files in the order of their names: for tests, and to run old kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from autokernel.errors import TargetNotFound
from autokernel.propose import Brief
from autokernel.propose.language import language_of
from autokernel.records import Proposal, Trial, Verdict


class ReplayProposer:
    """Proposes `folder/*.py`, or, where there is one for the task, `folder/TASK-ID/*.py`; each once."""

    name = "replay"

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise TargetNotFound(path=self.folder)

    def propose(self, brief: Brief, evaluate: Callable[[str], Verdict]) -> Proposal | None:
        """The next file whose text has not been tried; None after the last."""
        for path in self._files(brief):
            source = path.read_text(encoding="utf-8")
            if hashlib.sha256(source.encode()).hexdigest() not in brief.sources:
                return Proposal(
                    source=source, language=language_of(source), author=self.name, hypothesis=f"replay of {path.name}"
                )
        return None

    def observe(self, task: str, trial: Trial) -> None:
        """Nothing to remember: `brief.sources` tells what has been tried."""

    def outlook(self, brief: Brief) -> float | None:
        """No opinion while files are left; nothing after."""
        tried = set(brief.sources)
        texts = (path.read_text(encoding="utf-8") for path in self._files(brief))
        left = any(hashlib.sha256(text.encode()).hexdigest() not in tried for text in texts)
        return None if left else 0.0

    def _files(self, brief: Brief) -> list[Path]:
        own = self.folder / brief.task.task.id
        return sorted((own if own.is_dir() else self.folder).glob("*.py"))
