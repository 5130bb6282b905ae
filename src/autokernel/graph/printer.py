"""A region as the text of a reference.py: KernelBench form, readable, runs alone with torch.

The forward is printed from the operators as captured, one statement for each of the user's source lines where that
works, under a comment with the line itself. Extents given as `free` are written by the input that has them
(`x.shape[1]`), so that the reference also runs at other sizes.
"""

from __future__ import annotations

import math
import operator
import textwrap
from collections.abc import Collection, Sequence

from torch import fx

from autokernel.graph.naming import assigned_names, identifier, source_lines, unique
from autokernel.graph.spelling import Text, spell
from autokernel.graph.titles import operator_name
from autokernel.records import TensorSpec

_WIDTH = 100
_RESERVED = frozenset({"self", "torch", "nn", "F", "Tensor"})

_HEADER = '''"""{title}

{where}KernelBench form: `Model`, `get_inputs()`, `get_init_inputs()`. Cut out of a model by autokernel.
"""

import torch
import torch.nn.functional as F  # noqa: F401
from torch import nn


class Model(nn.Module):
    def forward(self, {arguments}):
{body}


def get_init_inputs():
    return []


def get_inputs():
    return [
{inputs}
    ]
'''


def print_reference(
    module: fx.GraphModule,
    specs: Sequence[TensorSpec],
    title: str,
    *,
    lines: Sequence[str] = (),
    free: Collection[int] = (),
    plain: bool = False,
) -> str:
    """The text of a reference.py for a region's module; placeholders and `specs` correspond and share their names.

    `lines`: the user's source lines, for the docstring. `free`: extents that may change. `plain`: every operator as
    its own call, the form that can't be misread.
    """
    body = _Body(module, frozenset(free), plain).statements()
    where = "".join(f"    {line}\n" for line in lines[:12])
    return _HEADER.format(
        title=title.replace("\\", "/").replace('"""', "'''"),
        where=f"From:\n{_docstring(where)}\n" if where else "",
        arguments=", ".join(spec.name for spec in specs),
        body=textwrap.indent("\n".join(body), " " * 8),
        inputs="\n".join(f"        {input_expression(spec)},  # {spec.name}" for spec in specs),
    )


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


class _Body:
    """Statements of the forward. Expressions used once on the same source line are written in place."""

    def __init__(self, module: fx.GraphModule, free: frozenset[int], plain: bool) -> None:
        self.nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        self.output = module.graph.output_node()
        self.plain = plain
        self.names: dict[fx.Node, Text] = {}
        self.taken: set[str] = set(_RESERVED)
        self.extents: dict[int, str] = {}
        for node in module.graph.find_nodes(op="placeholder"):
            self.names[node] = Text(node.name)
            self.taken.add(node.name)
            for axis, extent in enumerate(node.meta["val"].shape):
                if extent in free:
                    self.extents.setdefault(extent, f"{node.name}.shape[{axis}]")

    def size(self, value: int) -> str:
        return self.extents.get(value, str(value))

    def statements(self) -> list[str]:
        written: list[str] = []
        said: str | None = None
        for position, node in enumerate(self.nodes):
            text = spell(node, self.names, self.size, plain=self.plain)
            if self.in_place(node, text):
                self.names[node] = text
                continue
            line = next(iter(source_lines([node])), None)
            if line is not None and line != said:
                written.append(f"# {line}")
                said = line
            name = unique(self.variable(node, position), self.taken)
            self.names[node] = Text(name)
            written.append(f"{name} = {text.code}")
        returned = [self.names[node].code for node in self.output.args[0]]  # type: ignore[union-attr,index]
        return [*written, f"return {', '.join(returned)}"]

    def in_place(self, node: fx.Node, text: Text) -> bool:
        users = list(node.users)
        if len(users) != 1 or users[0] is self.output or len(text.code) > _WIDTH - 40:
            return False
        user = users[0]
        if sum(argument is node for argument in _arguments(user)) != 1:
            return False
        if node.target is operator.getitem or _is_view(node):
            return True
        return source_lines([node]) == source_lines([user])

    def variable(self, node: fx.Node, position: int) -> str:
        """The user's own variable if the node is the last of its line, else the operator's name."""
        assigned = assigned_names(node)
        line = source_lines([node])
        last = all(source_lines([later]) != line for later in self.nodes[position + 1 :])
        if len(assigned) == 1 and last:
            return identifier(assigned[0])
        if node in self.output.all_input_nodes and len(self.output.all_input_nodes) == 1:
            return "out"
        return identifier(operator_name(node) or "value")


def _arguments(node: fx.Node) -> list[object]:
    found: list[object] = []
    stack: list[object] = [*node.args, *node.kwargs.values()]
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack.extend(value)
        else:
            found.append(value)
    return found


def _is_view(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


# --- inputs -----------------------------------------------------------------------------------------------------------


def input_expression(spec: TensorSpec) -> str:
    """Plain torch for a tensor of this shape, dtype, stride and offset, with values of its kind."""
    shape = ", ".join(map(str, spec.shape))
    if _contiguous(spec.shape, spec.stride) and spec.offset == 0:
        return _values(spec, shape)
    span = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    count = spec.offset + (span if math.prod(spec.shape) else 0)
    where = f"({_tuple(spec.shape)}, {_tuple(spec.stride)}" + (f", {spec.offset})" if spec.offset else ")")
    flat = spec.model_copy(update={"shape": (max(count, 1),)})
    return f"{_values(flat, str(max(count, 1)), flat=True)}.as_strided{where}"


def _contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if step != expected:
            return False
        expected *= max(size, 1)
    return True


def _values(spec: TensorSpec, shape: str, *, flat: bool = False) -> str:
    dtype = "" if spec.dtype == "float32" else f", dtype=torch.{spec.dtype}"
    seen = spec.statistics
    if spec.dtype == "bool":
        if spec.domain == "causal_mask" and not flat:
            return f"torch.ones({_tuple(spec.shape)}, dtype=torch.bool).tril({spec.shape[-1] - spec.shape[-2]})"
        return f"(torch.rand({shape or '()'}) < 0.5)"
    if not spec.dtype.startswith(("float", "bfloat")):
        high = spec.high or (int(seen.maximum) + 1 if seen is not None and seen.maximum is not None else 2)
        return f"torch.randint(0, {max(high, 1)}, {_tuple(spec.shape)}, dtype=torch.{spec.dtype})"
    if spec.domain == "causal_mask" and not flat and len(spec.shape) >= 2:
        return f'torch.full({_tuple(spec.shape)}, float("-inf"){dtype}).triu({1 + spec.shape[-1] - spec.shape[-2]})'
    if spec.domain == "positive":
        return f"torch.rand({shape or '()'}{dtype})" + ("" if flat else " + 0.1")
    if spec.domain == "unit":
        signed = seen is not None and (seen.minimum or 0.0) < 0 and not flat
        return f"torch.rand({shape or '()'}{dtype})" + (" * 2 - 1" if signed else "")
    text = f"torch.randn({shape or '()'}{dtype})"
    if flat or seen is None or seen.mean is None or seen.std is None:
        return text
    if not math.isfinite(seen.mean) or not math.isfinite(seen.std):
        return text
    scale, shift = float(f"{seen.std or 0.1:.2g}"), float(f"{seen.mean:.2g}")
    text += f" * {scale}" if scale != 1.0 else ""
    return text + (f" {'-' if shift < 0 else '+'} {abs(shift)}" if abs(shift) > 0.1 * scale else "")


def _tuple(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"
