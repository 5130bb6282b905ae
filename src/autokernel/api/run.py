"""A run as Python users hold it: a folder, and what it gives their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from autokernel.install.backend import Installed
    from autokernel.records import Proof
    from autokernel.report import RunView


class Run:
    """A finished or unfinished run on disk. Holds no lock and no open file."""

    def __init__(self, path: str | Path, *, interrupted: bool = False) -> None:
        self.path = Path(path).absolute()
        self.interrupted = interrupted  # a signal ended the call that returned this

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Raises NotARun, NewerSchema or BrokenFile."""
        from autokernel.loop.folder import RunFolder

        run = cls(path)
        RunFolder.open(run.path)
        return run

    def apply(self, model: Callable[..., Any]) -> Installed:
        """The model with the kernels that the run's verification kept, compiled on first call.

        It shares the model's weights and is called like it. Where a kernel does not fit (other shapes, dtypes, device,
        gradients on) the original code runs, counted in `.fallbacks`. When nothing paid, what runs is the best
        baseline that verification found. Raises NotARun when the run was never verified.
        """
        from autokernel.install.saved import apply_saved

        return apply_saved(self.path, model)

    def backend(self) -> Callable[..., Any]:
        """The same as a backend for `torch.compile(model, backend=...)`."""
        from autokernel.install.saved import saved_backend

        return saved_backend(self.path)

    def view(self) -> RunView:
        """Everything the reports are written from, as it is on disk now."""
        from autokernel.viewing import view_run

        return view_run(self.path)

    @property
    def proof(self) -> Proof | None:
        """What verification found; None while there was none."""
        return self.view().proof

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
