"""Whole-graph moves on a captured ATen graph, each one exact or measured. Door: the dataclasses below.

    masks.py      fold_masks(module) -> findings: attention masks that are all-true or causal become None / is_causal
    attention.py  pin_attention(module, choose=None) -> Pinned: masks folded, each attention's backend fixed
    measure.py    choose_by_measurement(site) -> the fastest right backend of a site, or None
    seen.py       eager_masks(call), traced_as(node): what attention is handed, and the kernel that a trace leads to
    pinned.py     the operators `autokernel_attention::flash | cudnn | efficient`
    constant.py, relayout.py, repeated.py: what those need

Graphs are changed only in ways that keep their results (within the rounding of another attention kernel), the strides
of their outputs, and `meta["val"]` of every node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import fx

Mask = Literal["none", "causal", "given"]


@dataclass(frozen=True)
class Finding:
    """What was made of the mask of one attention node: `became` "given" means it was left, and `reason` says why."""

    node: str
    became: Mask
    reason: str


@dataclass(frozen=True)
class TensorLayout:
    """Shape, strides (in elements) and dtype ("bfloat16") of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class AttentionSite:
    """Attention nodes that are the same to a backend. q: [batch, heads, L, d]; k, v: [batch, heads or fewer, S, d].

    `given` is the layout of the mask where `mask` is "given", else None. `scale` None means 1/√d. `gqa`: k and v have
    fewer heads than q, query head h reads head h // (heads / k's heads). `count`: nodes of the graph at this site.
    """

    q: TensorLayout
    k: TensorLayout
    v: TensorLayout
    device: str  # "cuda" or "cpu"
    mask: Mask
    given: TensorLayout | None = None
    scale: float | None = None
    gqa: bool = False
    count: int = 1

    def title(self) -> str:
        """For reports: "2 × bfloat16 1×32×2048×64, 8 key heads, causal"."""
        size = "×".join(str(extent) for extent in self.q.shape)
        keys = f", {self.k.shape[2]} keys" if self.k.shape[2] != self.q.shape[2] else ""
        heads = f", {self.k.shape[1]} key heads" if self.gqa else ""
        mask = {"none": "no mask", "causal": "causal", "given": "a mask given"}[self.mask]
        return f"{self.count} × {self.q.dtype} {size}{keys}{heads}, {mask}"


@dataclass(frozen=True)
class Pinned:
    """A graph with its attention pinned. `count` nodes were; `sites` says which backend each site has.

    `module` is a new GraphModule. `findings`: what became of each mask.
    """

    module: fx.GraphModule
    sites: tuple[str, ...]
    count: int
    findings: tuple[Finding, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything is different from the graph that was given."""
        return self.count > 0 or any(finding.became != "given" for finding in self.findings)
