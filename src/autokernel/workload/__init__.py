"""How a target becomes a model with example inputs. Door: `load(target)` and `from_objects(model, args, kwargs)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """One set of example inputs and how often it is met (weights need not sum to one)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True)
class Workload:
    """A model (an nn.Module in eval mode, or a plain function) with its inputs, on its device and in its dtype."""

    name: str
    model: Callable[..., Any]
    cases: tuple[Case, ...]
    target: str  # what the user typed; "python" for in-process objects
    path: Path | None = None  # the user's file
    assumptions: tuple[str, ...] = ()  # what was assumed, one line each, printed first


def load(target: str, *, device: str = "cpu", dtype: str | None = None, batch: int | None = None) -> Workload:
    """Load a command-line target. Raises TargetNotFound, TargetInvalid, TargetFailed, UnsupportedTarget."""
    from autokernel.workload.target import load_target

    return load_target(target, device=device, dtype=dtype, batch=batch)


def from_objects(
    model: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Workload:
    """A workload from objects in this process. Raises TargetInvalid, TargetFailed."""
    from autokernel.workload.target import from_objects as build

    return build(model, args, kwargs or {})
