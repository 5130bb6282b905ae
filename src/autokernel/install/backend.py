"""`install(model, winners, mode)`: the model compiled with its regions replaced by winners where they fit.

The backend captures the graph Dynamo hands it on the same route as the tasks were made, cuts it with the same
partitioner, and puts an operator in place of every region whose fingerprint and shape key have a winner. What is left
is compiled by Inductor, or run as it is (mode "eager"). A graph in which nothing fits is compiled as it came.

Sizes are compiled as they come (`dynamic=False`): a kernel was judged for its own, and a graph with symbolic sizes made
after another shape would shut it out. Not covered: a backward pass; with gradients on, the original model runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autokernel.graph import CapturedGraph, Skipped
from autokernel.graph.capture import make_backend
from autokernel.graph.replace import replace
from autokernel.install import Winner
from autokernel.install.compiling import Mode, compile_alone, inductor_patches
from autokernel.install.engagement import calls_seen
from autokernel.install.kernel import load
from autokernel.install.ops import Operator, misfit, operator


class FallbackWarning(UserWarning):
    """Something ran as the user wrote it, without our kernels; said once a reason."""


def install(
    model: Callable[..., Any], winners: Sequence[Winner], mode: Mode = "default", *, refused: str | None = None
) -> Installed:
    """The model with its winners, compiled on first call. The model itself is not changed and shares its weights.

    mode: "default" or "max-autotune" (Inductor compiles the rest) or "eager" (the rest runs as captured).
    refused: a reason for which no winner may run here at all; then every call is the original's.
    Kernels are built and loaded now: raises NoCompiler, CompileFailure, KernelInvalid, or what a kernel file raises.
    """
    if refused is None:
        for winner in winners:
            load(winner.source)
    return Installed(model, tuple(winners), mode, refused)


class Installed:
    """Callable like the model; other attributes are the model's own.

    `replaced`: task id → number of places it stands in (the most of any call; graphs are compiled on first call).
    `left`: why regions that have a winner were left alone. `skipped`: graphs that could not be captured.
    """

    def __init__(
        self, model: Callable[..., Any], winners: tuple[Winner, ...], mode: Mode, refused: str | None = None
    ) -> None:
        self.original = model
        self.winners = winners
        self.mode = mode
        self.replaced: dict[str, int] = {winner.task.id: 0 for winner in winners}
        self.left: list[str] = []
        self.skipped: list[Skipped] = []
        self._refused = refused
        self._table = {winner.key: winner for winner in winners}
        self._operators: dict[str, Operator] = {}
        self._misses_before: dict[str, int] = {}
        self._originals = 0
        self._compilations = 0
        self._sites: Counter[str] = Counter()  # of the call that is compiling
        self._said: set[str] = set()
        self._lock = threading.Lock()
        compile_rest = None if mode == "eager" else self._compile
        self._compiled = compile_alone(
            model, backend=make_backend(self._handle, compile_rest, skipped=self.skipped), dynamic=False
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._refused is not None:
            return self._run_original(self._refused, args, kwargs)
        if torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            return self._run_original("gradients are on; call it under torch.no_grad()", args, kwargs)
        before = self._compilations
        result = self._compiled(*args, **kwargs)
        if self._compilations != before:
            self._look_at_compilation()
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # not yet set: a lookup during unpickling or copying
            raise AttributeError(name)
        return getattr(self.original, name)

    @property
    def fallbacks(self) -> int:
        """Calls of the original model, and calls of an operator whose guards turned it away."""
        missed = sum(op.misses - self._misses_before[task] for task, op in self._operators.items())
        return self._originals + missed

    def engaged(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Task id → calls of its kernel in one profiled call of the model with these inputs; fallbacks don't count."""
        self(*args, **kwargs)  # so that no compilation, which runs graphs to check them, falls into the profile
        before = {task: op.misses for task, op in self._operators.items()}
        seen = calls_seen(lambda: self(*args, **kwargs), frozenset(op.name for op in self._operators.values()))
        found = dict.fromkeys(self.replaced, 0)
        for task, op in self._operators.items():
            found[task] = seen[op.name] - (op.misses - before[task])
        return found

    # --- compiling ---

    def _handle(self, captured: CapturedGraph, inputs: Sequence[Any]) -> fx.GraphModule | None:
        self._compilations += 1
        chosen: dict[int, Any] = {}
        sites: Counter[str] = Counter()
        for region in captured.regions:
            winner = self._table.get((region.fingerprint, region.shape_key))
            if winner is None:
                continue
            reason = misfit(winner.task, region.inputs, region.outputs)
            if reason is not None:
                self.left.append(f"{winner.task.id} in graph {captured.index}: {reason}")
                continue
            op = operator(winner, region.module)
            self._misses_before.setdefault(winner.task.id, op.misses)
            self._operators[winner.task.id] = op
            chosen[region.index] = op.overload
            sites[winner.task.id] += 1
        if not chosen:
            return None
        self._sites.update(sites)
        return replace(captured, chosen)

    def _compile(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(module, list(inputs), config_patches=inductor_patches(self.mode))
        return cast("Callable[..., Any]", compiled)

    def _look_at_compilation(self) -> None:
        """After a call that compiled: say what its user would not notice."""
        sites, self._sites = self._sites, Counter()
        for task, count in sites.items():
            self.replaced[task] = max(self.replaced[task], count)
        if self.winners and not sites:
            why = f" ({self.left[-1]})" if self.left else ""
            self._say(f"no kernel fits this call of the model; it runs without ours{why}")
        if self._compilations >= torch._dynamo.config.recompile_limit:
            self._say(
                f"the model was compiled {self._compilations} times (new shapes, dtypes or branches); "
                "after its limit PyTorch runs further ones in eager"
            )

    # --- falling back ---

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
