"""Regions of a captured graph replaced: by other functions (install), or each by a submodule of its own (profile)."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from autokernel.graph import CapturedGraph, Region

Make = Callable[[fx.Graph, tuple[fx.Node, ...]], fx.Node]


def replace(captured: CapturedGraph, substitutions: Mapping[int, Callable[..., Any]]) -> fx.GraphModule:
    """A new graph in which region `index` is the call `substitutions[index](*region inputs)`.

    The function (a `torch.library` overload) returns a tensor for a region with one output, else a tuple in the order
    of `region.outputs`. Inputs, outputs and write-backs of the graph stay as they are; `meta["val"]` is carried over.
    """

    def caller(function: Callable[..., Any]) -> Make:
        return lambda graph, inputs: graph.call_function(function, inputs)

    makers = {index: caller(function) for index, function in substitutions.items()}
    return _rebuild(captured, makers, {}, single=True)


def split(captured: CapturedGraph) -> fx.GraphModule:
    """The graph with every region as the submodule `region_<index>`, which returns a tuple. Views stay outside."""
    modules = {f"region_{region.index}": region.module for region in captured.regions}

    def caller(name: str) -> Make:
        return lambda graph, inputs: graph.call_module(name, inputs)

    makers = {region.index: caller(f"region_{region.index}") for region in captured.regions}
    return _rebuild(captured, makers, modules, single=False)


def _rebuild(
    captured: CapturedGraph, makers: Mapping[int, Make], modules: Mapping[str, fx.GraphModule], *, single: bool
) -> fx.GraphModule:
    regions = [region for region in captured.regions if region.index in makers]
    owner = {node: region for region in regions for node in region.nodes}
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}

    def place(node: fx.Node) -> fx.Node:
        """The node's copy; what it needs is placed first (a region may read what stands after its first node)."""
        stack = [node]
        while stack:
            current = stack[-1]
            if current in env:
                stack.pop()
                continue
            region = owner.get(current)
            missing = [argument for argument in _needs(current, region) if argument not in env]
            if missing:
                stack.extend(reversed(missing))
                continue
            if region is None:
                env[current] = graph.node_copy(current, lambda argument: env[argument])
                env[current].meta = dict(current.meta)
            else:
                _call(region, makers[region.index], graph, env, single)
                if current not in env:
                    raise ValueError(f"region {region.index} does not give {current}, which is read outside of it")
            stack.pop()
        return env[node]

    # in the old order, so that nothing moves across a change of mode; what only replaced regions read is left out
    live = _live(captured.module.graph, owner)
    for node in captured.module.graph.nodes:
        if node in live:
            place(node)
    root = _root(captured.module, modules)
    result = fx.GraphModule(root, graph)
    result.graph.eliminate_dead_code()
    result.graph.lint()
    result.recompile()
    return result


def _needs(node: fx.Node, region: Region | None) -> Sequence[fx.Node]:
    return region.inputs if region is not None else node.all_input_nodes


def _live(graph: fx.Graph, owner: Mapping[fx.Node, Region]) -> set[fx.Node]:
    """What is still computed: inputs, effects and the output, and all that they need, regions taken as whole."""
    stack = [node for node in graph.nodes if node.op in ("placeholder", "output") or _has_effect(node)]
    live: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack.extend(_needs(node, owner.get(node)))
    return live


def _has_effect(node: fx.Node) -> bool:
    """True for what runs for its effect: write-backs, changes of mode."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return node.is_impure() or not isinstance(node.target, torch._ops.OperatorBase)


def _call(region: Region, make: Make, graph: fx.Graph, env: dict[fx.Node, fx.Node], single: bool) -> None:
    call = make(graph, tuple(env[node] for node in region.inputs))
    values = tuple(node.meta.get("val") for node in region.outputs)
    for key in ("stack_trace", "nn_module_stack"):
        if key in region.outputs[0].meta:
            call.meta[key] = region.outputs[0].meta[key]
    if single and len(region.outputs) == 1:
        call.meta["val"] = values[0]
        env[region.outputs[0]] = call
        return
    call.meta["val"] = values
    for position, node in enumerate(region.outputs):
        item = graph.call_function(operator.getitem, (call, position))
        item.meta = dict(node.meta)
        env[node] = item


def _root(module: fx.GraphModule, modules: Mapping[str, fx.GraphModule]) -> dict[str, Any]:
    """What the new graph may refer to: the attributes of the old one, and the regions."""
    found: dict[str, Any] = dict(modules)
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        found[str(node.target)] = copy.copy(value)
    return found
