"""The `torch.compile` backend that puts operators in the place of regions, and keeps account of what it did.

It captures the graph Dynamo hands it on the same route as the tasks were made, cuts it with the same partitioner, and
replaces every region whose fingerprint and shape key have a winner. Attention that is left in the graph may be
rewritten too (`attention`: masks folded, its kernel pinned). What is left is compiled by Inductor, or run as it is
(modes "eager" and "eager-graphs"). A graph in which nothing changes, or that must be differentiated, is compiled as it
came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from autokernel.graph import CapturedGraph, Skipped
from autokernel.graph.capture import make_backend
from autokernel.graph.replace import replace
from autokernel.install import Winner
from autokernel.install.compiling import UNCOMPILED, Mode, inductor_patches, like_dynamo, make_known
from autokernel.install.ops import Operator, misfit, operator

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class Substitution:
    """State of one backend. `replaced`: task id → places it stands in, the most of any one call of the model.

    `left`: why regions that have a winner were left alone. `skipped`: graphs that could not be captured. `attention`:
    what was done to attention, in words.
    """

    def __init__(self, winners: Sequence[Winner], mode: Mode, *, attention: bool = False) -> None:
        self.winners = tuple(winners)
        self.mode = mode
        self.attention: list[str] = []
        self._rewrites_attention = attention
        self._rewritten = 0  # places of attention, in the call that is compiling
        self._original: fx.GraphModule | None = None  # Dynamo's graph that is compiling
        self.replaced: dict[str, int] = {winner.task.id: 0 for winner in winners}
        self.left: list[str] = []
        self.skipped: list[Skipped] = []
        self.operators: dict[str, Operator] = {}
        self.compilations = 0
        self._misses_before: dict[str, int] = {}
        self._sites: Counter[str] = Counter()  # of the call that is compiling
        self._table = {winner.key: winner for winner in winners}

    def backend(self) -> Backend:
        """For `torch.compile(model, backend=...)`."""
        rest = None if self.mode in UNCOMPILED else self._compile
        inner = make_backend(self._handle, rest, skipped=self.skipped)

        def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            self._original = gm  # Dynamo compiles under a lock of its own
            try:
                return inner(gm, inputs)
            finally:
                self._original = None

        return backend

    @property
    def misses(self) -> int:
        """Calls that the guards of our operators turned away since this backend first used them."""
        return sum(op.misses - self._misses_before[task] for task, op in self.operators.items())

    def settle(self) -> bool:
        """After a call that compiled: take its places into `replaced`; whether anything was changed."""
        sites, self._sites = self._sites, Counter()
        rewritten, self._rewritten = self._rewritten, 0
        for task, count in sites.items():
            self.replaced[task] = max(self.replaced[task], count)
        return bool(sites) or rewritten > 0

    def _handle(self, captured: CapturedGraph, inputs: Sequence[Any]) -> fx.GraphModule | None:
        self.compilations += 1
        if torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
            self.left.append(f"graph {captured.index}: gradients are on, and kernels have no backward")
            return None
        if _returns_changed_input(captured.module):
            self.left.append(f"graph {captured.index}: it returns an input that it changes in place")
            return None
        chosen: dict[int, Any] = {}
        for region in captured.regions:
            winner = self._table.get((region.fingerprint, region.shape_key))
            if winner is None:
                continue
            task = winner.task.id
            reason = misfit(winner.task, region.inputs, region.outputs)
            if reason is not None:
                self.left.append(f"{task} in graph {captured.index}: {reason}")
                continue
            op = operator(winner, region.module)
            self._misses_before.setdefault(task, op.misses)
            self.operators[task] = op
            chosen[region.index] = op.overload
            self._sites[task] += 1
        module = replace(captured, chosen) if chosen else None
        return self._with_attention(captured, module) if self._rewrites_attention else module

    def _with_attention(self, captured: CapturedGraph, module: fx.GraphModule | None) -> fx.GraphModule | None:
        """`module`, or the captured graph where nothing was replaced, with its attention rewritten if there is any."""
        from autokernel.rewrite.attention import pin_attention

        pinned = pin_attention(module if module is not None else captured.module)
        folded = Counter(finding.became for finding in pinned.findings if finding.became != "given")
        if not pinned.count and not folded:
            return module
        self._rewritten += pinned.count + folded.total()
        masks = (f"{count} × attention: mask folded to {became}" for became, count in sorted(folded.items()))
        self.attention.extend(words for words in (*masks, *pinned.sites) if words not in self.attention)
        return pinned.module

    def _compile(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        if self._original is not None and module is not self._original:
            like_dynamo(module, self._original)
        make_known(module)
        compiled: Any = compile_fx(module, list(inputs), config_patches=inductor_patches(self.mode))
        return cast("Callable[..., Any]", compiled)


def _returns_changed_input(module: fx.GraphModule) -> bool:
    """Whether a value written back to an input is an output too: the caller may expect the input itself, not a copy."""
    written = {
        node.args[1] for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    }
    return any(node in written for node in module.graph.output_node().all_input_nodes)
