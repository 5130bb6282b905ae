"""Winners put back into the model as torch.library operators, by the partitioner that cut them out.

kernel.py    load(source) -> launch, in this process: a winner has been judged, and the user asked for it
ops.py       operator(winner, original) -> a registered torch.library operator with guards and fallback
backend.py   install(model, winners, mode) -> Installed, callable like the model
compiling.py modes and baselines; torch.compile without sharing caches between several installs of one model
graphs.py    a model replayed as a CUDA graph without a compiler
saved.py     RUN/winners.json: what was kept, and load_winners(run)
"""

from __future__ import annotations

from dataclasses import dataclass

from autokernel.records import Task


@dataclass(frozen=True)
class Winner:
    """A kernel that the judge accepted and the loop kept for a task."""

    task: Task
    source: str
    speedup_alone: float | None = None  # against the task's first incumbent, as the judge confirmed it

    @property
    def key(self) -> tuple[str, str]:
        """What a region must have for this kernel to stand in for it."""
        return self.task.fingerprint, self.task.shape_key
