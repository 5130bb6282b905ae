"""Cutting a captured graph into regions: convex, disjoint, covering every computation, the same on every run.

Greedy: in topological order each fusable operator joins the clusters of its producers, where the union stays convex
and keeps one iteration space:

* with reductions ("row"): all reduce the same number of trailing elements of the same number of rows; a last reduction
  over the per-row results (a mean loss) may follow; nothing inside permutes, cuts or concatenates a computed value, so
  that one row can be computed at a time; nothing is larger than rows × reduced elements;
* without ("pointwise"): all outputs have one shape; computed values may be re-indexed at will, they are recomputed.

Views and constants belong to no region: they are copied into each region that looks through them, so that a slice
shared by all layers does not glue the layers together, and a region's inputs are the tensors behind the views. The
graph is fused by structure only; whether a generator can write a region is not asked here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from torch import Tensor, fx

from autokernel.graph import Region
from autokernel.graph.cut import make_region
from autokernel.graph.facts import Facts, enters_autocast, facts_of, leaves_autocast, row_keeping, row_space


class _Cluster:
    def __init__(self, node: fx.Node, facts: Facts, epoch: int) -> None:
        self.nodes = [node]
        self.fusable = facts.kind == "fusable"
        self.reductions = set(facts.reductions)
        self.epoch = epoch


class _Partitioner:
    """The clusters while they grow. `free` nodes (views, constants, placeholders) are in no cluster."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.order = {node: position for position, node in enumerate(module.graph.nodes)}
        self.facts: dict[fx.Node, Facts] = {}
        self.cluster: dict[fx.Node, _Cluster] = {}
        self._sources: dict[fx.Node, list[tuple[fx.Node, list[fx.Node]]]] = {}
        self._readers: dict[fx.Node, list[fx.Node]] = {}
        epoch = autocast = 0
        for node in module.graph.nodes:
            if node.op not in ("call_function", "call_module", "call_method"):
                continue
            autocast += enters_autocast(node) - leaves_autocast(node)
            if node.op != "call_function" or autocast:
                # under autocast an operator alone, outside, is another computation
                facts = self.facts[node] = Facts("barrier")
            else:
                facts = self.facts[node] = facts_of(node)
            if facts.kind == "barrier":
                epoch += 1
            elif facts.kind != "view" and node.target is operator.getitem:
                self._join_source(node)
            elif facts.kind in ("fusable", "opaque"):
                self.cluster[node] = _Cluster(node, facts, epoch)

    def _join_source(self, node: fx.Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if source in self.cluster:
            self.cluster[node] = self.cluster[source]
            self.cluster[source].nodes.append(node)

    def free(self, node: fx.Node) -> bool:
        return node in self.facts and self.facts[node].kind in ("view", "constant")

    def through_views(self, node: fx.Node) -> list[tuple[fx.Node, list[fx.Node]]]:
        """The computed or given nodes that `node` reads, each with the views in between."""
        if node not in self._sources:
            found: list[tuple[fx.Node, list[fx.Node]]] = []
            stack: list[tuple[fx.Node, list[fx.Node]]] = [(argument, []) for argument in reversed(node.all_input_nodes)]
            while stack:
                current, views = stack.pop()
                if self.free(current):
                    stack.extend((argument, [*views, current]) for argument in reversed(current.all_input_nodes))
                else:
                    found.append((current, views))
            self._sources[node] = found
        return self._sources[node]

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Nodes that read `node`, directly or through views; the graph's output and barriers among them."""
        if node not in self._readers:
            found: dict[fx.Node, None] = {}
            for user in node.users:
                found.update(dict.fromkeys(self.readers(user) if self.free(user) else [user]))
            self._readers[node] = list(found)
        return self._readers[node]

    def run(self) -> list[_Cluster]:
        for node in self.order:
            if node in self.cluster and self.cluster[node].fusable:
                for producer, _ in self.through_views(node):
                    source = self.cluster.get(producer)
                    if source is not None and source is not self.cluster[node] and source.fusable:
                        self.try_merge(source, self.cluster[node])
        return self.sorted()

    def sorted(self) -> list[_Cluster]:
        """Topological order of the clusters; among those that are ready, the one whose first node comes first."""
        clusters = list({id(cluster): cluster for cluster in self.cluster.values()}.values())
        before = {id(cluster): self.producers(cluster) for cluster in clusters}
        done: set[int] = set()
        answer: list[_Cluster] = []
        waiting = sorted(clusters, key=lambda cluster: self.order[cluster.nodes[0]])
        while waiting:
            ready = next(cluster for cluster in waiting if before[id(cluster)] <= done)
            waiting.remove(ready)
            done.add(id(ready))
            answer.append(ready)
        return answer

    def producers(self, cluster: _Cluster) -> set[int]:
        sources = (producer for node in cluster.nodes for producer, _ in self.through_views(node))
        found = {id(self.cluster[producer]) for producer in sources if producer in self.cluster}
        return found - {id(cluster)}

    def try_merge(self, producer: _Cluster, consumer: _Cluster) -> None:
        if producer.epoch != consumer.epoch:
            return
        union = sorted({*producer.nodes, *consumer.nodes}, key=self.order.__getitem__)
        if not self.one_space(union, producer.reductions | consumer.reductions) or self.detour(producer, consumer):
            return
        producer.nodes = union
        producer.reductions |= consumer.reductions
        for node in union:
            self.cluster[node] = producer

    # --- convexity ---

    def detour(self, producer: _Cluster, consumer: _Cluster) -> bool:
        """Is there a path from producer to consumer through anything else, other clusters taken as whole?"""
        inside = {*producer.nodes, *consumer.nodes}
        stack = [user for node in producer.nodes for user in self.readers(node) if user not in inside]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in inside:
                return True
            if node in seen:
                continue
            whole = self.cluster[node].nodes if node in self.cluster else [node]
            seen.update(whole)
            stack.extend(user for member in whole for user in self.readers(member) if user not in seen)
        return False

    # --- iteration space ---

    def outputs(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        own = set(nodes)
        return [node for node in own if any(reader not in own for reader in self.readers(node))]

    def one_space(self, nodes: list[fx.Node], reductions: set[tuple[int, int]]) -> bool:
        return self.one_row_space(nodes, reductions) if reductions else self.one_shape(nodes)

    def one_shape(self, nodes: list[fx.Node]) -> bool:
        shapes = {_wide(node) for node in self.outputs(nodes)}
        return len(shapes) == 1 and not any(self.facts[node].gathers for node in nodes)

    def one_row_space(self, nodes: list[fx.Node], reductions: set[tuple[int, int]]) -> bool:
        space = row_space(reductions)
        if space is None:
            return False
        rows, length = space
        own = set(nodes)
        for node in nodes:
            if not self.facts[node].aligned or _count(node) > rows * length:
                return False
            for producer, views in self.through_views(node):
                if producer in own and not all(row_keeping(view) for view in views):
                    return False
        return all(_count(node) in (1, rows, rows * length) for node in self.outputs(nodes))


def _count(node: fx.Node) -> int:
    val = node.meta["val"]
    return math.prod(val.shape) if isinstance(val, Tensor) else 0


def _wide(node: fx.Node) -> tuple[int, ...]:
    val = node.meta["val"]
    return tuple(size for size in val.shape if size != 1) if isinstance(val, Tensor) else ()


def partition(module: fx.GraphModule, graph: int = 0) -> tuple[Region, ...]:
    """The regions of a captured graph (`to_aten`'s result), in topological order. Deterministic."""
    work = _Partitioner(module)
    regions = []
    for index, cluster in enumerate(work.run()):
        own = set(cluster.nodes)
        inside = _with_free(work, cluster.nodes)
        outputs = [node for node in cluster.nodes if any(reader not in own for reader in work.readers(node))]
        kind = "other"
        if cluster.fusable:
            kind = "row" if cluster.reductions else "pointwise"
            if not _regular(work, cluster):
                kind = "other"
        regions.append(make_region(graph, index, kind, cluster.nodes, inside, outputs))
    return tuple(regions)


def _regular(work: _Partitioner, cluster: _Cluster) -> bool:
    """A lone operator was never asked whether it has one iteration space."""
    facts = [work.facts[node] for node in cluster.nodes]
    if not cluster.reductions:
        return not any(fact.gathers for fact in facts)
    return row_space(cluster.reductions) is not None and all(fact.aligned for fact in facts)


def _with_free(work: _Partitioner, nodes: list[fx.Node]) -> list[fx.Node]:
    """The cluster's nodes, each preceded by the views and constants that it looks through (fusable clusters only)."""
    inside: dict[fx.Node, None] = {}

    def add(node: fx.Node) -> None:
        for argument in node.all_input_nodes:
            if work.free(argument) and argument not in inside:
                add(argument)
        inside[node] = None

    for node in nodes:
        if work.cluster[node].fusable:
            add(node)
        else:
            inside[node] = None
    return list(inside)
