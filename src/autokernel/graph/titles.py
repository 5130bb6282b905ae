"""One line that tells a person what a region is. For reading only: nothing is decided by it."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

import torch
from torch import fx

from autokernel.graph.naming import functions

_WORDS = {
    "_to_copy": "",
    "type_as": "",
    "to": "",
    "clone": "copy",
    "contiguous": "copy",
    "_softmax": "softmax",
    "_log_softmax": "log softmax",
    "native_layer_norm": "layer norm",
    "native_group_norm": "group norm",
    "native_batch_norm": "batch norm",
    "_native_batch_norm_legit_no_training": "batch norm",
    "scaled_dot_product_attention": "attention",
    "conv1d": "convolution",
    "conv2d": "convolution",
    "conv3d": "convolution",
    "cross_entropy_loss": "cross entropy",
    "mm": "matmul",
    "bmm": "matmul",
}
# spelled-out norms, as the words of consecutive operators
_PHRASES = [
    (re.compile(r"\b(pow|mul|square), mean, add, rsqrt, mul(, mul)?\b"), "rms norm"),
    (re.compile(r"\b(pow|mul|square), mean, add, sqrt, div(, mul)?\b"), "rms norm"),
    (re.compile(r"\bmean, sub, (pow|mul|square), mean, add, (rsqrt|sqrt), (mul|div)(, mul)?(, add)?\b"), "layer norm"),
    (re.compile(r"\bmean, (var, )?sub, (var, )?add, (rsqrt|sqrt), (mul|div)(, mul)?(, add)?\b"), "layer norm"),
    (re.compile(r"\bsilu, mul\b"), "swiglu"),
    (re.compile(r"\bgelu, mul\b"), "geglu"),
    (re.compile(r"\bsub, exp, sum, div\b"), "softmax"),
]


def title_of(nodes: Sequence[fx.Node], kind: str) -> str:
    """ "add → rms norm"; a helper function of the user's gives its own name ("rotary"). At most four parts."""
    labels: list[str] = []
    for node in nodes:
        word = operator_name(node) if node.target is not operator.getitem else ""
        function = "" if kind == "other" else _helper(node)
        label = f"<{function}>" if function else word
        if label and (not labels or labels[-1] != label or not function):
            labels.append(label)
    text = ", ".join(labels)
    for pattern, phrase in _PHRASES:
        text = pattern.sub(phrase, text)
    parts = [part.strip("<>") for part in text.split(", ") if part]
    merged = [part for position, part in enumerate(parts) if position == 0 or part != parts[position - 1]]
    if not merged:
        return "copy"
    return " → ".join(merged if len(merged) <= 4 else [*merged[:2], "…", merged[-1]])


def operator_name(node: fx.Node) -> str:
    """ "linear", "softmax", "layer norm"."""
    packet = getattr(node.target, "overloadpacket", None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return str(getattr(node.target, "__name__", node.target))
    name = packet.__name__
    return _WORDS.get(name, name.strip("_").replace("_", " "))


def _helper(node: fx.Node) -> str:
    """The user's outermost helper function around a node ("rotary"), "" if it stands in a forward."""
    names = functions(node)
    below = names[max((position for position, name in enumerate(names) if name == "forward"), default=-1) + 1 :]
    if "forward" not in names or not below:
        return ""
    return below[0].replace("_", " ").strip()
