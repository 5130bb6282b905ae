"""Attention left in a graph, pinned to the backend that measures fastest at its shapes, strides and mask.

A compiler chooses a kernel for each attention while tracing, by rules, from what the graph looks like then. Here masks
that fold are turned back first; then equal attentions are grouped into sites, `choose` names a backend for each site,
and the nodes become operators that run this backend and no other. A site for which it names none stays as it is.

Not covered, and left: dropout, gradients, tensors that aren't four-dimensional.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from autokernel.rewrite import AttentionSite, Mask, Pinned, TensorLayout
from autokernel.rewrite.masks import SDPA, arguments, fold_masks
from autokernel.rewrite.measure import choose_by_measurement
from autokernel.rewrite.pinned import BACKENDS, native_stride, overload
from autokernel.rewrite.relayout import change_layout, fake_mode
from autokernel.rewrite.repeated import before_repeat

_DTYPES = ("float16", "bfloat16", "float32", "float64")
Choose = Callable[[AttentionSite], "str | None"]


@dataclass(frozen=True)
class _Attention:
    """One node and the tensors that a pinned operator would read in its place."""

    node: fx.Node
    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: fx.Node | None
    site: AttentionSite


def pin_attention(
    module: fx.GraphModule, choose: Choose | None = None, *, differentiated: bool | None = None
) -> Pinned:
    """A new graph with its masks folded and its attention pinned; `module` is not changed.

    `module`: functional ATen of fixed sizes with fake tensors in `meta["val"]`, as captured (regions may have been
    replaced by operators already). `choose(site)` names a backend of the site's device ("flash", "cudnn",
    "efficient") or None; left out, `choose_by_measurement`. It is asked once a site: for grouped-query attention
    whose heads the graph repeats, first with the heads as they were, then, if that gives None, repeated.
    `differentiated`: whether a backward pass may follow; then nothing is touched, since the operators have none. A
    captured graph doesn't show it: left out, it is taken to follow wherever gradients are on.
    Raises KeyError for a backend that the device doesn't have.
    """
    copied = _copy(module)
    if torch.is_grad_enabled() if differentiated is None else differentiated:
        return Pinned(copied, (), 0)
    findings = tuple(fold_masks(copied))
    plans = [forms for node in copied.graph.find_nodes(op="call_function", target=SDPA) if (forms := _forms(node))]
    chosen = _choose(plans, choose or choose_by_measurement)
    pinned: Counter[tuple[AttentionSite, str]] = Counter()
    for forms in plans:
        form, backend = next(((form, name) for form in forms if (name := chosen.get(form.site))), (None, None))
        if form is not None and backend is not None and _pin(form, backend):
            pinned[form.site, backend] += 1
    copied.graph.eliminate_dead_code()
    copied.graph.lint()
    copied.recompile()
    sites = tuple(f"{replace(site, count=count).title()}: {name}" for (site, name), count in pinned.items())
    return Pinned(copied, sites, sum(pinned.values()), findings)


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        env[node] = graph.node_copy(node, lambda argument: env[argument])
        env[node].meta = dict(node.meta)
    copied = fx.GraphModule(module, graph)
    copied.meta.update(module.meta)
    return copied


def _choose(plans: list[list[_Attention]], choose: Choose) -> dict[AttentionSite, str | None]:
    """Site (counted as one) → backend; a later form is asked about only if the earlier ones have none."""
    chosen: dict[AttentionSite, str | None] = {}
    waiting = plans
    for position in range(2):
        waiting = [forms for forms in waiting if position < len(forms)]
        counts = Counter(forms[position].site for forms in waiting)
        for site, count in counts.items():
            if site not in chosen:
                chosen[site] = choose(replace(site, count=count))
        waiting = [forms for forms in waiting if chosen[forms[position].site] is None]
    return chosen


def _forms(node: fx.Node) -> list[_Attention]:
    """The ways to see an attention node as a site, the cheapest first; none when it can't be pinned."""
    given = arguments(node)
    q, k, v = (given[name] for name in ("query", "key", "value"))
    mask = given.get("attn_mask")
    causal = bool(given.get("is_causal"))
    if given.get("dropout_p") or (mask is not None and causal):
        return []
    narrow = before_repeat(k), before_repeat(v)
    keys = [(k, v)]
    if narrow[0] is not None and narrow[1] is not None and not given.get("enable_gqa"):
        keys.insert(0, (narrow[0], narrow[1]))
    kind: Mask = "given" if mask is not None else "causal" if causal else "none"
    found = []
    for key, value in keys:
        site = _site(q, key, value, mask, kind, given.get("scale"))
        if site is not None:
            found.append(_Attention(node, q, key, value, mask, site))
    return found


def _site(q: fx.Node, k: fx.Node, v: fx.Node, mask: Any, kind: Mask, scale: float | None) -> AttentionSite | None:
    values: list[Any] = [each.meta.get("val") for each in (q, k, v, mask) if each is not None]
    if not all(isinstance(value, Tensor) for value in values) or any(value.dim() != 4 for value in values[:3]):
        return None
    layouts = [_layout(value) for value in values]
    shapes = [layout.shape for layout in layouts]
    alike = {(value.device.type, value.dtype) for value in values[:3]}
    device = str(values[0].device.type)
    if device not in BACKENDS or len(alike) != 1 or layouts[0].dtype not in _DTYPES:
        return None
    (batch, heads, queries, width), (_, key_heads, count, _) = shapes[:2]
    fits = (
        shapes[1] == (batch, key_heads, count, width)
        and shapes[2][:3] == (batch, key_heads, count)
        and heads % key_heads == 0
        and (kind != "causal" or queries == count)
        and min(heads, key_heads, queries, count, width, batch) > 0
    )
    if not fits or (mask is not None and not _only_masks(shapes[3], (batch, heads, queries, count))):
        return None
    given = layouts[3] if mask is not None else None
    own = layouts[0], layouts[1], layouts[2]
    return AttentionSite(*own, device, kind, given, scale, gqa=heads != key_heads)


def _layout(value: Tensor) -> TensorLayout:
    return TensorLayout(tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch."))


def _only_masks(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    return len(shape) <= len(scores) and all(size in (1, full) for size, full in pairs)


def _pin(form: _Attention, backend: str) -> bool:
    """Make the node the backend's operator; False when its readers can't take the output."""
    node, site = form.node, form.site
    if backend not in BACKENDS[site.device]:
        raise KeyError(f"there is no attention backend {backend!r} on {site.device}")
    old, before = node.meta["val"], (node.target, node.args, node.kwargs)
    q, k, v = (each.meta["val"] for each in (form.q, form.k, form.v))
    with fake_mode(node), torch.no_grad():
        stride = native_stride(backend, q, k, v, site.scale)
    op, causal = overload(backend), site.mask == "causal"
    for strides in dict.fromkeys((stride, tuple(old.stride()))):  # its own, or those that the readers need
        node.target = op
        node.args = (form.q, form.k, form.v, form.mask, causal, site.scale, site.gqa, list(strides))
        node.kwargs = {}
        with fake_mode(node):
            new = old.new_empty_strided(old.shape, strides)
        if change_layout(node, new):
            return True
    node.target, node.args, node.kwargs = before
    return False
