"""Names and source lines that a reader of the model knows again."""

from __future__ import annotations

import ast
import keyword
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from autokernel.records import Role

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n(?: +(?P<code>[^\n]*))?')
_PART = re.compile(r"\['(?P<item>[^']+)'\]|\.(?P<attribute>\w+)|\[(?P<index>\d+)\]")
_TORCH = os.path.dirname(torch.__file__)
_HOLDERS = frozenset({"_modules", "_parameters", "_buffers"})
_INTERNAL = _HOLDERS | {"L", "G", "self"}


def name_placeholders(gm: fx.GraphModule, module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give the captured graph's placeholders their path in the model, their role, and a readable name.

    Both graphs have the same placeholders in the same order; the names come from Dynamo's source of each.
    """
    taken: set[str] = set()
    sources = gm.graph.find_nodes(op="placeholder")
    for theirs, ours, value in zip(sources, module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        path = source_path(theirs)
        ours.meta["path"] = path
        ours.meta["role"] = role_of(theirs, value)
        name = unique(identifier(path.replace(".", "_")), taken)
        if name != ours.name:
            ours._rename(name)
            ours.target = ours.name
    module.graph.lint()


def source_path(node: fx.Node) -> str:
    """ "blocks.0.norm.weight" for a parameter, the argument's own name for an input."""
    source = getattr(node, "_dynamo_source", None)
    text = _source_text(source) if source is not None else ""
    parts = [match.group("item") or match.group("attribute") or match.group("index") for match in _PART.finditer(text)]
    if any(part in _HOLDERS for part in parts):
        parts = parts[1:]  # the variable that holds the model
    parts = [part for part in parts if part not in _INTERNAL]
    return ".".join(parts) or node.name.strip("_").removeprefix("l_")


def _source_text(source: Any) -> str:
    name = source.name
    return str(name() if callable(name) else name)


def role_of(node: fx.Node, value: Any) -> Role:
    source = getattr(node, "_dynamo_source", None)
    text = _source_text(source) if source is not None else node.name
    if isinstance(value, nn.Parameter) or "_parameters" in text:
        return Role.parameter
    if "_buffers" in text:
        return Role.buffer
    return plain_role(value)


def plain_role(value: Any) -> Role:
    """What a tensor is by its type alone: bool → mask, integer → index, else activation."""
    if not isinstance(value, Tensor):
        return Role.scalar
    if value.dtype == torch.bool:
        return Role.mask
    return Role.activation if value.dtype.is_floating_point or value.dtype.is_complex else Role.index


def identifier(text: str) -> str:
    """A Python name out of any text."""
    name = re.sub(r"\W+", "_", text).strip("_").lower() or "x"
    if name[0].isdigit():
        name = f"x{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def unique(name: str, taken: set[str]) -> str:
    """`name`, or `name_2`, `name_3`, ...; the answer is added to `taken`."""
    answer, count = name, 1
    while answer in taken:
        count += 1
        answer = f"{name}_{count}"
    taken.add(answer)
    return answer


def frames(node: fx.Node) -> list[tuple[str, int, str]]:
    """The user's frames of a node (torch's own left out), outermost first: path, line, code."""
    found = []
    for match in _FRAME.finditer(node.meta.get("stack_trace") or ""):
        path = match.group("path")
        if not path.startswith((_TORCH, "<")):
            found.append((path, int(match.group("line")), (match.group("code") or "").strip()))
    return found


def functions(node: fx.Node) -> list[str]:
    """Names of the user's functions around a node, outermost first."""
    text = node.meta.get("stack_trace") or ""
    return [m.group("function") for m in _FRAME.finditer(text) if not m.group("path").startswith((_TORCH, "<"))]


def module_name(node: fx.Node) -> str:
    """The attribute that holds the layer whose result the node is: "q_proj" inside torch.nn layers, "input_norm" for
    what a user's forward returns; the class for a layer in a list; "" elsewhere."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    own = frames(node)
    if not stack:
        return ""
    path, kind = stack[-1]
    library = str(getattr(kind, "__module__", kind)).startswith("torch.nn")
    if not library and not (own and own[-1][2].startswith("return ") and functions(node)[-1] == "forward"):
        return ""
    names = [part for part in re.split(r"[.\[\]']+", str(path)) if part]
    if not names or names[-1].isdigit() or names[-1] in _INTERNAL:
        return str(getattr(kind, "__name__", str(kind).rsplit(".", 1)[-1])).lower()
    return names[-1]


def source_lines(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """ "path.py:42  code" of each node's innermost user frame, in the order of the nodes, without repeats."""
    lines: dict[str, None] = {}
    for node in nodes:
        own = frames(node)
        if own:
            path, line, code = own[-1]
            lines[f"{os.path.basename(path)}:{line}  {code}"] = None
    return tuple(lines)


def assigned_names(node: fx.Node) -> list[str]:
    """The variables that the node's source line assigns: ["q"] for `q = ...`, [] for a line that assigns none."""
    own = frames(node)
    if not own:
        return []
    try:
        body = ast.parse(own[-1][2]).body
    except SyntaxError:
        return []
    if not body or not isinstance(body[0], ast.Assign) or len(body) != 1:
        return []
    targets = body[0].targets[0]
    names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
    return [name.id for name in names if isinstance(name, ast.Name)]
