"""RUN/winners.json: the kernels that verification left in the model, each with its source as it was verified.

The file, not the task folders, is what a model is given: a resumed run may go on improving kernel.py, and what it finds
there has not been proved in the model yet.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autokernel.errors import KernelInvalid, NotARun, OutOfMemory
from autokernel.install import Winner
from autokernel.install.backend import FallbackWarning, Installed, cuda_of, install
from autokernel.install.compiling import Mode
from autokernel.install.kernel import load
from autokernel.install.ops import warm
from autokernel.install.substitute import Backend, Substitution
from autokernel.languages import CompileFailure
from autokernel.records import KeptKernel, KeptKernels

FILE = "winners.json"


def save_winners(
    run: Path, winners: Sequence[Winner], compiled_as: Mode, device_class: str = "cpu", *, attention: bool = False
) -> Path:
    """Write RUN/winners.json (whole or not at all); returns its path.

    device_class: the workload's. attention: whether rewritten attention was proved to pay (`Proof.attention.kept`).
    """
    document = KeptKernels(
        compiled_as=compiled_as,
        torch=torch.__version__,
        device_class=device_class,
        kernels=tuple(
            KeptKernel(task=winner.task, source=winner.source, speedup_alone=winner.speedup_alone) for winner in winners
        ),
        attention=attention,
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    path = run / FILE
    with tempfile.NamedTemporaryFile("w", dir=run, prefix=f".{FILE}", delete=False, encoding="utf-8") as file:
        file.write(document.dump())
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
    return path


def load_saved(run: Path) -> KeptKernels:
    """Raises NotARun when the run has no winners.json yet, BrokenFile or NewerSchema when it can't be read."""
    path = run / FILE
    if not path.exists():
        raise NotARun(path=run, detail=f"it has no {FILE} (it was not verified, or `autokernel verify` has not ended).")
    return KeptKernels.load(path)


def load_winners(run: Path) -> list[Winner]:
    """The kernels that the run's verification kept; empty when none paid. Raises as `load_saved` does."""
    return [Winner(kept.task, kept.source, kept.speedup_alone) for kept in load_saved(run).kernels]


def apply_saved(run: Path, model: Callable[..., Any]) -> Installed:
    """The model with what the run kept, compiled as it was verified.

    Under another torch version, or on another class of device, the kernels were not proved: the original runs, said
    once, counted in `fallbacks`. Raises as `load_saved` does.
    """
    saved = load_saved(run)
    winners, refused = load_winners(run), _unproved(saved, model)
    if refused is None:
        _load_all(run, winners, model)
    return install(model, winners, saved.compiled_as, attention=saved.attention, refused=refused)


def saved_backend(run: Path) -> Backend:
    """The same as a backend: `torch.compile(model, backend=...)`.

    Under another torch version, or where gradients are needed, graphs are compiled without the run's kernels. A run
    that was compiled with CUDA graphs is so here too (except "eager-graphs", which no backend can be: its graphs run as
    captured). Raises as `load_saved` does, and what loading a kernel raises.
    """
    saved, winners = load_saved(run), load_winners(run)
    refused = _unproved(saved, None)
    if refused is not None:
        warnings.warn(f"autokernel: the model is compiled without kernels: {refused}", FallbackWarning, stacklevel=2)
        return Substitution([], saved.compiled_as).backend()
    _load_all(run, winners, None)
    return Substitution(winners, saved.compiled_as, attention=saved.attention).backend()


def _load_all(run: Path, winners: Sequence[Winner], model: Any) -> None:
    """Build, load and (on CUDA) launch once; a kernel that this machine refuses is named with its task."""
    for winner in winners:
        detail = f"its kernel of {winner.task.id} does not compile here"
        try:
            load(winner.source)
        except CompileFailure as failure:
            raise KernelInvalid(path=run / FILE, detail=f"{detail}: {failure.log.strip()}") from failure
        if winner.task.device_class != "cuda":
            continue
        try:
            warm(winner, cuda_of(model))
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(doing=f"trying the kernel of {winner.task.id}", detail=error) from error
        except Exception as error:  # Triton's compiler and launcher raise classes of their own, and no common base
            what = f"{detail}, or does not run: {type(error).__name__}: {error}"
            raise KernelInvalid(path=run / FILE, detail=what) from error


def _unproved(saved: KeptKernels, model: Any) -> str | None:
    if saved.device_class == "cuda" and not torch.cuda.is_available():
        return "they are for cuda, which PyTorch does not find here"
    if saved.torch != torch.__version__:
        return (
            f"its kernels were proved under torch {saved.torch}, this is {torch.__version__}; run `autokernel verify`"
        )
    if isinstance(model, nn.Module):
        elsewhere = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} - {saved.device_class}
        if elsewhere:
            return f"they are for {saved.device_class}, the model is on {', '.join(sorted(elsewhere))}"
    return None
