"""A cluster of nodes as a module of its own: inputs in the order of first use, names from the user's code."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from autokernel.errors import CaptureFailed
from autokernel.graph import Region
from autokernel.graph.count import count
from autokernel.graph.emitter import value_of
from autokernel.graph.facts import signature
from autokernel.graph.fingerprint import fingerprint
from autokernel.graph.lower import lower
from autokernel.graph.naming import assigned_names, identifier, module_name, plain_role, source_lines, unique
from autokernel.graph.titles import operator_name, title_of
from autokernel.records import Role


def make_region(
    graph: int, index: int, kind: str, nodes: Sequence[fx.Node], inside: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> Region:
    """Cut `inside` (the computing `nodes` and the views copied with them, in graph order) out of its graph."""
    module, inputs = cut(inside, outputs)
    identity = _identity(_Cut(module))
    return Region(
        graph=graph,
        index=index,
        kind=kind,
        title=title_of(nodes, kind),
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(outputs),
        module=module,
        fingerprint=identity[0],
        shape_key=identity[1],
        flops=identity[2],
        min_bytes=identity[3],
        lines=source_lines(nodes),
    )


def cut(inside: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
    """The module and its input nodes, in the order of first use."""
    own = set(inside)
    inputs: dict[fx.Node, None] = {}
    for node in inside:
        inputs.update((argument, None) for argument in node.all_input_nodes if argument not in own)
    graph = fx.Graph()
    taken: set[str] = set()
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        name = unique(input_name(node, taken), taken)
        env[node] = placeholder = graph.placeholder(name)
        role = node.meta.get("role")
        placeholder.meta.update(
            val=value_of(node),
            role=role if isinstance(role, Role) else plain_role(value_of(node)),
            path=node.meta.get("path", ""),
        )
    for node in inside:
        env[node] = graph.node_copy(node, lambda argument: env[argument])
        env[node].meta = dict(node.meta)
    graph.output(tuple(env[node] for node in outputs))
    module = fx.GraphModule({}, graph)
    return module, tuple(inputs)


def input_name(node: fx.Node, taken: set[str]) -> str:
    """A parameter's own name (after its module's if that one is taken); a value's variable, layer, or operator."""
    if node.op == "placeholder":
        parts = [part for part in str(node.meta.get("path") or node.name).split(".") if part]
        short = identifier(parts[-1])
        return identifier("_".join(parts[-2:])) if short in taken and len(parts) > 1 else short
    return value_name(node)


def value_name(node: fx.Node) -> str:
    """What the user calls the value of a node: the variable if the node ends its line (views aside), else its layer."""
    assigned = assigned_names(node)
    if len(assigned) == 1 and _ends_line(node, source_lines([node])):
        return identifier(assigned[0])
    return identifier(module_name(node) or operator_name(node))


def _ends_line(node: fx.Node, line: tuple[str, ...]) -> bool:
    for user in node.users:
        if user.op == "call_function" and source_lines([user]) == line:
            free = user.target is operator.getitem or getattr(user.target, "is_view", False)
            if not free or not _ends_line(user, line):
                return False
    return True


class _Cut:
    """A region's module, compared by structure: the same layer elsewhere need not be lowered again."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module: fx.GraphModule | None = module
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        returned = [nodes.index(node) for node in module.graph.output_node().all_input_nodes]
        order = [node.name for node in module.graph.find_nodes(op="placeholder")]
        used = [argument.name for node in nodes for argument in node.all_input_nodes if argument.op == "placeholder"]
        self.key = (signature(nodes), tuple(returned), tuple(order.index(name) for name in used))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cut) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=4096)
def _identity(region: _Cut) -> tuple[str, str, int, int]:
    """(fingerprint, shape key, flops, bytes) of a region's lowered form."""
    module = region.module
    assert module is not None
    region.module = None  # the key is enough from here on
    lowered = lowered_region(module)
    for ours, theirs in zip(lowered.graph.output_node().args[0], module.graph.output_node().args[0], strict=True):  # type: ignore[arg-type]
        _same_result(value_of(ours), value_of(theirs))
    return *fingerprint(lowered), *count(lowered)


def _same_result(ours: Any, theirs: Any) -> None:
    """A region computed on its own must give what it gives in its graph (autocast and other modes could change it)."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        found, wanted = (f"{value.dtype} {tuple(value.shape)}" for value in (ours, theirs))
        raise CaptureFailed(target="a region", detail=f"a region gives {found} on its own, but {wanted} in the model")


def lowered_region(module: fx.GraphModule) -> fx.GraphModule:
    """`lower` of a region's module, on the layouts it was captured with."""
    inputs: list[Any] = [value_of(node) for node in module.graph.find_nodes(op="placeholder")]
    assert all(isinstance(value, Tensor) for value in inputs)
    return lower(module, inputs)
