"""Attention masks that say nothing, or say "causal", taken out of the graph.

While tracing, libraries build a mask from shapes that eager runs never have (they pass None or `is_causal`), and the
fused kernels refuse it or lose time on it. Such a mask has a value that no data reaches: it is computed here and
compared, element by element, with the two that kernels know. Anything else stays: a mask that a user gave, a window,
a causal mask aligned to the last key (decoding), one that is a graph's input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from autokernel.rewrite import Finding, Mask
from autokernel.rewrite.constant import constant_value
from autokernel.rewrite.relayout import change_layout, fake_mode

SDPA = torch.ops.aten.scaled_dot_product_attention.default


def fold_masks(module: fx.GraphModule) -> list[Finding]:
    """Change `module` in place; one finding for each attention that has a mask. Masks left without a reader are erased.

    `module` is a captured ATen graph of fixed sizes with fake tensors in `meta["val"]`.
    """
    known: dict[fx.Node, Mask | str] = {}
    findings: list[Finding] = []
    for node in module.graph.find_nodes(op="call_function", target=SDPA):
        given = arguments(node)
        if given.get("attn_mask") is not None:
            findings.append(_fold(node, given, known))
    if any(finding.became != "given" for finding in findings):
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()
    return findings


def arguments(node: fx.Node) -> dict[str, Any]:
    """The node's arguments by the operator's own names, those left out missing."""
    names = [argument.name for argument in SDPA._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def what_mask(mask: Tensor) -> Mask:
    """What a mask [..., L, S] amounts to: bool (true: look), or a float that is added to the scores."""
    # elements that an `expand` repeats are looked at once
    once = mask[tuple(slice(0, 1) if step == 0 and size else slice(None) for size, step in _dims(mask))]
    allowed = once
    if mask.dtype != torch.bool:
        if not mask.dtype.is_floating_point:
            return "given"
        allowed = once == 0
        blocked = once <= torch.finfo(mask.dtype).min  # -inf is below every number
        if not bool((allowed | blocked).all()):
            return "given"
    if bool(allowed.all()):
        return "none"
    if allowed.dim() < 2 or mask.shape[-1] != mask.shape[-2] or allowed.shape[-2:] != mask.shape[-2:]:
        return "given"  # `is_causal` is aligned to the first key: with other lengths it is another mask
    length = mask.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return "causal" if all(torch.equal(each, causal) for each in allowed.reshape(-1, length, length)) else "given"


def _dims(mask: Tensor) -> list[tuple[int, int]]:
    return list(zip(mask.shape, mask.stride(), strict=True))


def _fold(node: fx.Node, given: dict[str, Any], known: dict[fx.Node, Mask | str]) -> Finding:
    mask = given["attn_mask"]
    if given.get("is_causal") or given.get("dropout_p"):
        return Finding(node.name, "given", "it comes with dropout or is_causal")
    if not _fits(node, given):
        return Finding(node.name, "given", "it is broadcast in a way that shapes the output")
    if mask not in known:
        value = constant_value(mask)
        known[mask] = value if isinstance(value, str) else what_mask(value)
    became = known[mask]
    if became not in ("none", "causal"):
        reason = "it is neither all-true nor causal" if became == "given" else became
        return Finding(node.name, "given", reason)
    if became == "causal" and given["query"].meta["val"].shape[-2] != given["key"].meta["val"].shape[-2]:
        return Finding(node.name, "given", "it is causal, and there are not as many keys as queries")
    before = node.args, node.kwargs
    _without_mask(node, given, causal=became == "causal")
    if not change_layout(node, _refaked(node)):
        node.args, node.kwargs = before
        return Finding(node.name, "given", "without it the output would have other strides than its readers need")
    return Finding(node.name, became, f"{mask.name} is {'causal' if became == 'causal' else 'true everywhere'}")


def _fits(node: fx.Node, given: dict[str, Any]) -> bool:
    """Whether the mask only masks: it may be broadcast to the scores [..., L, S], but the scores not to it."""
    query, key, value, mask = (given[name].meta["val"] for name in ("query", "key", "value", "attn_mask"))
    scores = (*query.shape[:-1], key.shape[-2])
    if tuple(node.meta["val"].shape) != (*query.shape[:-1], value.shape[-1]) or mask.dim() > len(scores):
        return False
    return all(size in (1, full) for size, full in zip(reversed(mask.shape), reversed(scores), strict=False))


def _without_mask(node: fx.Node, given: dict[str, Any], causal: bool) -> None:
    rest: dict[str, Any] = {name: given[name] for name in ("scale", "enable_gqa") if name in given}
    node.args = (given["query"], given["key"], given["value"])
    node.kwargs = {"is_causal": True, **rest} if causal else rest


def _refaked(node: fx.Node) -> Tensor:
    """The fake result of the node as it is now: another backend may lay its output out differently."""
    values = [argument.meta["val"] for argument in node.args]  # type: ignore[union-attr]
    with fake_mode(node), torch.no_grad():
        result = SDPA(*values, **node.kwargs)
    assert isinstance(result, Tensor)
    return result
