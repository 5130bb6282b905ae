"""`install(model, winners, mode)`: the model compiled with its regions replaced by winners where they fit.

Sizes are compiled as they come (`dynamic=False`): a kernel was judged for its own, and a graph with symbolic sizes made
after another shape would shut it out. Not covered: a backward pass; with gradients on, the original model runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autokernel.errors import NotGraphable
from autokernel.graph import Skipped
from autokernel.install import Winner
from autokernel.install.compiling import GRAPHS, Mode, baseline, compile_alone, stepping
from autokernel.install.engagement import attribute, calls_seen, launches_seen
from autokernel.install.graphs import EagerGraphs
from autokernel.install.kernel import jitted, load
from autokernel.install.ops import Operator, warm
from autokernel.install.substitute import Substitution


class FallbackWarning(UserWarning):
    """Something ran as the user wrote it, without our kernels; said once a reason."""


def install(
    model: Callable[..., Any],
    winners: Sequence[Winner],
    mode: Mode = "default",
    *,
    attention: bool = False,
    keep_outputs: bool = True,
    refused: str | None = None,
) -> Installed:
    """The model with its winners, compiled on first call. The model itself is not changed and shares its weights.

    mode: "default" or "max-autotune" (Inductor compiles the rest) or "eager" (the rest runs as captured);
    "reduce-overhead", "max-autotune-graphs" and "eager-graphs" are the same under CUDA graphs. Without winners, and
    without attention that may be rewritten, it is the plain baseline of that mode.
    attention: attention left in the graph has its mask folded and its kernel pinned.
    keep_outputs: "eager-graphs" returns copies of the graph's outputs. In the other modes with CUDA graphs an output
    is valid until the next call, as under torch.compile; PyTorch raises when it is read later.
    refused: a reason for which no winner may run here at all; then every call is the original's.
    Kernels are built and loaded now, and launched once on CUDA: raises NoCompiler, CompileFailure, KernelInvalid,
    or what a kernel file or its first launch raises.
    """
    if refused is None:
        for winner in winners:
            load(winner.source)
            if winner.task.device_class == "cuda":
                warm(winner, cuda_of(model))
    return Installed(model, tuple(winners), mode, refused, attention=attention, keep_outputs=keep_outputs)


def cuda_of(model: Any) -> torch.device:
    """The device of the model's tensors; the current one of a plain function."""
    if isinstance(model, nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.device.type == "cuda":
                return tensor.device
    return torch.device("cuda", torch.cuda.current_device())


class Installed:
    """Callable like the model; attributes that are not its own are the model's."""

    def __init__(
        self,
        model: Callable[..., Any],
        winners: tuple[Winner, ...],
        mode: Mode,
        refused: str | None = None,
        *,
        attention: bool = False,
        keep_outputs: bool = True,
    ) -> None:
        self.original = model
        self.winners = winners
        self.mode = mode
        self._refused = refused
        self._originals = 0
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._changes = bool(winners) or attention
        self._substitution = Substitution(winners, mode, attention=attention)
        self._compiled = self._build(keep_outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._refused is not None:
            return self._run_original(self._refused, args, kwargs)
        whole = not self._changes and self.mode != "eager-graphs"  # torch's own compilation knows gradients
        if not whole and torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            return self._run_original("gradients are on; call it under torch.no_grad()", args, kwargs)
        before, skipped = self._substitution.compilations, len(self._substitution.skipped)
        try:
            result = self._compiled(*args, **kwargs)
        except NotGraphable as error:
            return self._run_original(str(error.values["detail"]), args, kwargs)
        for part in self._substitution.skipped[skipped:]:
            self._say(f"{part.what} of the model was left as it is: {part.reason}")
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
    def attention(self) -> tuple[str, ...]:
        """What was done to attention that stays in the graph, in words; known after the first call."""
        return tuple(self._substitution.attention)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Graphs that could not be captured, and run without our kernels."""
        return tuple(self._substitution.skipped)

    @property
    def fallbacks(self) -> int:
        """Calls of the original model, and calls of an operator whose guards turned it away."""
        return self._originals + self._substitution.misses

    def engaged(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Task id → calls of its kernel in one profiled call of the model with these inputs; fallbacks don't count.

        On CUDA only kernels count that the device is seen to run, replays of CUDA graphs included.
        """
        # so that no compilation, which runs graphs to check them, and no recording of a graph falls into the profile
        for _ in range(3 if self.mode in GRAPHS else 1):
            self(*args, **kwargs)
        operators = self._substitution.operators
        before = {task: op.misses for task, op in operators.items()}
        on_cuda = any(op.winner.task.device_class == "cuda" for op in operators.values())
        names = frozenset(op.name for op in operators.values())
        launched: Counter[str] = Counter()
        if on_cuda:
            seen, launched = launches_seen(lambda: self(*args, **kwargs), names)
        else:
            seen = calls_seen(lambda: self(*args, **kwargs), names)
        found = dict.fromkeys(self.replaced, 0)
        found |= {task: seen[op.name] - (op.misses - before[task]) for task, op in operators.items()}
        return found | self._on_device(operators, found, launched) if on_cuda else found

    def _on_device(
        self, operators: Mapping[str, Operator], dispatched: Mapping[str, int], launched: Mapping[str, int]
    ) -> dict[str, int]:
        kernels = {task: jitted(op.winner.source) for task, op in operators.items()}
        return attribute(dispatched, launched, kernels, self.replaced)

    def _build(self, keep_outputs: bool) -> Callable[..., Any]:
        if not self._changes:
            return baseline(self.original, self.mode, keep_outputs=keep_outputs)
        compiled = compile_alone(self.original, backend=self._substitution.backend(), dynamic=False)
        if self.mode == "eager-graphs":
            return EagerGraphs(compiled, owner=self.original, keep_outputs=keep_outputs)
        return stepping(compiled) if self.mode in GRAPHS else compiled

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
