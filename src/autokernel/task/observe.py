"""What a region's inputs look like in the model: statistics and structure of their values, never the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from autokernel.graph import CapturedGraph
from autokernel.records import Role, Statistics

Domain = Literal["real", "positive", "unit", "causal_mask", "index", "bool", "structured"]
_BLOCKED = -1e4  # an additive mask's "minus infinity" may be a large negative number


@dataclass(frozen=True)
class Observed:
    statistics: Statistics
    domain: Domain
    mask: bool = False  # two values, 0 and (nearly) minus infinity, or bool


def observe(captured: CapturedGraph, inputs: Sequence[Any] | None = None) -> dict[fx.Node, Observed]:
    """Run the captured graph once and describe every tensor that is an input of one of its regions.

    `inputs`: flat inputs of the graph; by default those it was captured with. Keys are `region.inputs`.
    """
    wanted = {node for region in captured.regions for node in region.inputs}
    values = captured.inputs if inputs is None else inputs
    watcher = _Watcher(captured.module, wanted)
    with torch.no_grad():
        watcher.run(*(value.clone() if isinstance(value, Tensor) and watcher.mutates else value for value in values))
    return watcher.found


class _Watcher(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, wanted: set[fx.Node]) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.found: dict[fx.Node, Observed] = {}
        self.mutates = any(node.target is torch.ops.aten.copy_.default for node in module.graph.nodes)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted and isinstance(value, Tensor):
            self.found[n] = describe(value, n.meta.get("role"))
        return value


def describe(value: Tensor, role: Role | None = None) -> Observed:
    """Statistics over the finite values (population standard deviation), fractions over all, and the domain."""
    statistics = _statistics(value)
    if value.dtype == torch.bool:
        return Observed(statistics, "causal_mask" if _lower_triangle(value) else "bool", mask=True)
    if not value.dtype.is_floating_point:
        return Observed(statistics, "real" if value.dtype.is_complex else "index")
    if _additive_mask(value):
        return Observed(statistics, "causal_mask" if _lower_triangle(value == 0) else "structured", mask=True)
    low, high = statistics.minimum, statistics.maximum
    if low is not None and high is not None and role is not Role.parameter:
        if low > 0 and value.numel() > 1:
            return Observed(statistics, "positive")
        if role is Role.buffer and -1 <= low < -0.9 and 0.9 < high <= 1:
            return Observed(statistics, "unit")  # tables of sines and cosines
    return Observed(statistics, "real")


def _statistics(value: Tensor) -> Statistics:
    if value.numel() == 0 or value.dtype.is_complex:
        return Statistics()
    wide = _sample(value.detach()).double()
    finite = wide[torch.isfinite(wide)]
    some = finite.numel() > 0
    if some and len(finite) == len(wide) < value.numel() and value.dtype != torch.bool:
        extremes = torch.stack([bound for bound in torch.aminmax(value.detach()) if bound.isfinite()]).double()
        finite = torch.cat([finite, extremes.reshape(-1)])
    return Statistics(
        mean=_plain(finite.mean()) if some else None,
        std=_plain(finite.std(correction=0)) if some else None,
        minimum=_plain(finite.min()) if some else None,
        maximum=_plain(finite.max()) if some else None,
        fraction_inf=_plain(wide.isinf().double().mean()),
        fraction_nan=_plain(wide.isnan().double().mean()),
        fraction_zero=_plain((wide == 0).double().mean()),
    )


def _sample(value: Tensor) -> Tensor:
    """At most 2¹⁸ of the elements, evenly spread: enough for a description (extremes are taken from all)."""
    flat = value.reshape(-1)
    count = 1 << 18
    if flat.numel() <= count:
        return flat
    return flat[torch.linspace(0, flat.numel() - 1, count, dtype=torch.float64, device=flat.device).long()]


def _plain(value: Tensor) -> float:
    """Six digits are enough for a description, and keep task.json readable."""
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else number


def _additive_mask(value: Tensor) -> bool:
    few = _sample(value)
    if not bool(((few == 0) | (few <= _BLOCKED)).all()):
        return False
    blocked = value <= _BLOCKED
    return value.dim() >= 2 and bool(blocked.any()) and bool(((value == 0) | blocked).all())


def _lower_triangle(visible: Tensor) -> bool:
    """True where a causal mask allows; square or with more columns than rows (earlier tokens in a cache)."""
    if visible.dim() < 2 or visible.shape[-2] < 2 or visible.shape[-1] < visible.shape[-2]:
        return False
    rows, columns = visible.shape[-2:]
    expected = torch.ones(rows, columns, dtype=torch.bool, device=visible.device).tril(columns - rows)
    return bool((visible == expected).all())
