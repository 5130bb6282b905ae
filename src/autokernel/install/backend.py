"""`install(model, winners, mode)`: the model compiled with its regions replaced by winners where they fit.

Sizes are compiled as they come (`dynamic=False`): a kernel was judged for its own, and a graph with symbolic sizes made
after another shape would shut it out. Not covered: a backward pass; with gradients on, the original model runs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autokernel.graph import Skipped
from autokernel.install import Winner
from autokernel.install.compiling import Mode, baseline, compile_alone
from autokernel.install.engagement import calls_seen
from autokernel.install.kernel import load
from autokernel.install.substitute import Substitution


class FallbackWarning(UserWarning):
    """Something ran as the user wrote it, without our kernels; said once a reason."""


def install(
    model: Callable[..., Any], winners: Sequence[Winner], mode: Mode = "default", *, refused: str | None = None
) -> Installed:
    """The model with its winners, compiled on first call. The model itself is not changed and shares its weights.

    mode: "default" or "max-autotune" (Inductor compiles the rest) or "eager" (the rest runs as captured). Without
    winners it is the plain baseline of that mode.
    refused: a reason for which no winner may run here at all; then every call is the original's.
    Kernels are built and loaded now: raises NoCompiler, CompileFailure, KernelInvalid, or what a kernel file raises.
    """
    if refused is None:
        for winner in winners:
            load(winner.source)
    return Installed(model, tuple(winners), mode, refused)


class Installed:
    """Callable like the model; attributes that are not its own are the model's."""

    def __init__(
        self, model: Callable[..., Any], winners: tuple[Winner, ...], mode: Mode, refused: str | None = None
    ) -> None:
        self.original = model
        self.winners = winners
        self.mode = mode
        self._refused = refused
        self._originals = 0
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._substitution = Substitution(winners, mode)
        self._compiled = (
            compile_alone(model, backend=self._substitution.backend(), dynamic=False)
            if winners
            else baseline(model, mode)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._refused is not None:
            return self._run_original(self._refused, args, kwargs)
        if self.winners and torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            return self._run_original("gradients are on; call it under torch.no_grad()", args, kwargs)
        before = self._substitution.compilations
        result = self._compiled(*args, **kwargs)
        if self._substitution.compilations != before:
            self._look_at_compilation()
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "original":  # our own, not set yet: a lookup while copying or unpickling
            raise AttributeError(name)
        return getattr(self.original, name)

    @property
    def replaced(self) -> dict[str, int]:
        """Task id → places of the model it stands in; known after the first call."""
        return dict(self._substitution.replaced)

    @property
    def left(self) -> tuple[str, ...]:
        """Why regions that have a winner were left alone, each beginning with the task's id."""
        return tuple(self._substitution.left)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Graphs that could not be captured, and run without our kernels."""
        return tuple(self._substitution.skipped)

    @property
    def fallbacks(self) -> int:
        """Calls of the original model, and calls of an operator whose guards turned it away."""
        return self._originals + self._substitution.misses

    def engaged(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Task id → calls of its kernel in one profiled call of the model with these inputs; fallbacks don't count."""
        self(*args, **kwargs)  # so that no compilation, which runs graphs to check them, falls into the profile
        operators = self._substitution.operators
        before = {task: op.misses for task, op in operators.items()}
        seen = calls_seen(lambda: self(*args, **kwargs), frozenset(op.name for op in operators.values()))
        found = dict.fromkeys(self.replaced, 0)
        for task, op in operators.items():
            found[task] = seen[op.name] - (op.misses - before[task])
        return found

    def _look_at_compilation(self) -> None:
        """After a call that compiled: say what its user would not notice."""
        if not self._substitution.settle():
            why = f" ({self.left[-1]})" if self.left else ""
            self._say(f"no kernel fits this call of the model; it runs without ours{why}")
        count = self._substitution.compilations
        if count >= torch._dynamo.config.recompile_limit:
            self._say(
                f"the model was compiled {count} times (new shapes, dtypes or branches); "
                "after its limit PyTorch runs further ones in eager"
            )

    def _wants_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if isinstance(self.original, nn.Module) and any(p.requires_grad for p in self.original.parameters()):
            return True
        return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves((args, kwargs)))

    def _run_original(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            self._originals += 1
        self._say(f"the original model runs without our kernels: {reason}")
        return self.original(*args, **kwargs)

    def _say(self, message: str) -> None:
        with self._lock:
            if message in self._said:
                return
            self._said.add(message)
        warnings.warn(f"autokernel: {message}", FallbackWarning, stacklevel=4)
