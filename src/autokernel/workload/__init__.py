"""How a target becomes a model with example inputs. Door: `load(target)` and `from_objects(model, args, kwargs)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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


SEED, SEQ = 0, 512


@dataclass(frozen=True)
class Example:
    """The example inputs of a model from a library (`hf:`, `timm:`), and where its weights come from.

    `seq`: tokens (with what a cache holds). `image`: edge in pixels, None: the model's own. `phase`: prefill, or one
    step of decoding. `random_weights`: nothing is downloaded where the name is a class or a local folder.
    `trust_remote_code`: code from the hub may run.
    """

    batch: int = 1
    seq: int = SEQ
    chosen_seq: bool = False  # whether the user said so
    image: int | None = None
    phase: Literal["prefill", "decode"] = "prefill"
    random_weights: bool = False
    trust_remote_code: bool = False


def load(
    target: str,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    image: int | None = None,
    workload: Literal["prefill", "decode"] = "prefill",
    random_weights: bool = False,
    trust_remote_code: bool = False,
) -> Workload:
    """Load a command-line target. From `seq` on the options are for models of libraries only (`hf:`, `timm:`).

    Raises TargetNotFound, TargetInvalid, TargetFailed, MissingExtra, HubUnreachable, GatedModel, RemoteCode.
    """
    from autokernel.workload.target import load_target

    example = Example(batch or 1, seq or SEQ, seq is not None, image, workload, random_weights, trust_remote_code)
    return load_target(target, device=device, dtype=dtype, batch=batch, example=example)


def from_objects(
    model: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Workload:
    """A workload from objects in this process. Raises TargetInvalid, TargetFailed."""
    from autokernel.workload.target import from_objects as build

    return build(model, args, kwargs or {})
