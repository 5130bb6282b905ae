"""From a model to functional ATen graphs: the one file that uses torch's private tracing interfaces.

Route: a `torch.compile` backend; `aot_export_module` before dispatch, on the fake tensors of Dynamo's tracing context,
which keeps linear, attention, SiLU and norms whole and makes in-place operators functional. Mutated inputs come back as
`copy_` at the end of the graph. What `aot_export_module` refuses (a train-mode batch norm) is traced with `make_fx`.

Rejected: tracing with real tensors (bakes shapes in, and runs a training step twice); plain `make_fx` first (drops
stack traces). Not covered: graphs with symbolic sizes, and tensors baked in as constants; they run as the user wrote
them and are named as skipped. Every captured graph is compared with Dynamo's own on the real inputs before it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from autokernel.errors import CaptureFailed, OutOfMemory
from autokernel.graph import Capture, CapturedGraph, Skipped
from autokernel.graph.emitter import same_layout
from autokernel.graph.facts import enters_autocast, facts_of
from autokernel.graph.naming import name_placeholders
from autokernel.graph.partition import partition
from autokernel.graph.simplify import fold_constants

aten = torch.ops.aten
Handle = Callable[[CapturedGraph, Sequence[Any]], "fx.GraphModule | None"]
_RECOMPILATIONS = 64
Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def capture(model: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Capture:
    """Run `model(*args, **kwargs)` once through Dynamo and return its graphs, cut into regions.

    Gradients are off. Dynamo's state is reset before and after: compiled code of this process is compiled again when
    next used. What could not be captured is in `skipped`, with the reason. Raises CaptureFailed when tracing fails as a
    whole, or not one graph came out of it; OutOfMemory.
    """
    graphs: list[CapturedGraph] = []
    skipped: list[Skipped] = []
    calls: list[int] = []
    pending: int | None = None  # the graph just kept; none when the next to be counted was refused

    def keep(graph: CapturedGraph, inputs: Sequence[Any]) -> None:
        nonlocal pending
        pending = len(graphs)
        graphs.append(graph)
        calls.append(0)

    def count(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal pending
        position, pending = pending, None

        def run(*values: Any) -> Any:
            if position is not None:
                calls[position] += 1
            return gm(*values)

        return run

    what = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "the function")
    torch._dynamo.reset()
    backend = make_backend(keep, count, skipped=skipped)
    try:
        # at its own limit of recompilations Dynamo goes on without capturing, and without a word
        limit = torch._dynamo.config.patch(recompile_limit=_RECOMPILATIONS)
        with torch.no_grad(), limit, _untouched(model, args, kwargs or {}) as (own_args, own_kwargs):
            torch.compile(model, backend=backend, dynamic=False)(*own_args, **own_kwargs)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(doing="capturing the model", detail=error) from error
    except Exception as error:  # the model runs in plain PyTorch (the workload tried it): it is tracing that failed
        raise CaptureFailed(target=what, detail=f"{type(error).__name__}: {_first_line(error)}") from error
    finally:
        torch._dynamo.reset()
    if not graphs:
        reason = skipped[0].reason if skipped else "it runs no tensor operation that Dynamo can trace"
        raise CaptureFailed(target=what, detail=reason)
    counted = [dataclasses.replace(graph, calls=max(n, 1)) for graph, n in zip(graphs, calls, strict=True)]
    return Capture(graphs=tuple(counted), skipped=tuple(skipped))


@contextmanager
def _untouched(model: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Copies of the arguments for a model that may write into them; buffers it changes are put back."""
    copies: dict[int, Tensor] = {}  # one copy of each tensor: what is given twice stays one thing

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone()
        return copies[id(leaf)]

    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    first = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield pytree.tree_map(copy, (tuple(args), kwargs))
    finally:
        for buffer, value in first:
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def make_backend(
    handle: Handle, compile: Compile | None = None, *, skipped: list[Skipped] | None = None, check: bool = True
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A `torch.compile` backend on the same route as `capture`.

    `handle(captured, example_inputs)` may return a rewritten graph (None: Dynamo's own graph is used), which
    `compile(gm, example_inputs)` turns into a callable (None: it runs as it is). A graph that can't be captured, or
    that computes something else than Dynamo's on the example inputs (`check`), is appended to `skipped` and compiled
    as it came.
    """
    seen = 0

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal seen
        index, seen = seen, seen + 1
        chosen = gm
        try:
            captured = _captured(gm, example_inputs, index, check)
        except Exception as error:  # whatever tracing raises: the graph still runs, and the report names it
            if skipped is not None:
                detail = error.values.get("detail") if isinstance(error, CaptureFailed) else None
                reason = str(detail or f"{type(error).__name__}: {_first_line(error)}")
                skipped.append(Skipped(what=f"graph {index}", reason=reason))
        else:
            if skipped is not None and any(enters_autocast(node) for node in captured.module.graph.nodes):
                reason = "operators inside an autocast block stay as they are"
                skipped.append(Skipped(what=f"part of graph {index}", reason=reason))
            chosen = handle(captured, example_inputs) or gm
        return compile(chosen, example_inputs) if compile is not None else chosen

    return backend


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def _captured(gm: fx.GraphModule, inputs: Sequence[Any], index: int, check: bool) -> CapturedGraph:
    module = to_aten(gm, inputs)
    kept = tuple(inputs)
    if any(node.target is aten.copy_.default for node in module.graph.nodes):
        kept = tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)
    if check:
        _check(gm, module, inputs, f"graph {index}")
    return CapturedGraph(index=index, module=module, regions=partition(module, index), inputs=kept)


def to_aten(gm: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Dynamo's graph as functional ATen: composites whole, `meta["val"]` and stack traces kept, placeholders named.

    Placeholders carry `meta["role"]` (records.Role) and `meta["path"]` ("blocks.0.norm.weight", or the argument).
    Raises CaptureFailed; else whatever tracing raises.
    """
    if not all(isinstance(value, Tensor) for value in inputs):
        raise CaptureFailed(target="the graph", detail="its inputs have symbolic sizes (dynamic shapes)")
    if any(torch.is_autocast_enabled(kind) for kind in {value.device.type for value in inputs}):
        raise CaptureFailed(target="the graph", detail="it runs inside autocast")
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None and context.fake_mode is not None else None
    if mode is None:
        mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=False)
    fakes = [mode.from_tensor(value, static_shapes=True) for value in inputs]
    try:
        module = _exported(gm, fakes)
    except Exception:
        # the second route is asked only because the first one refused; its own failure is the one reported
        module = _traced(gm, fakes, mode)
    if any(isinstance(size, torch.SymInt) for node in module.graph.nodes for size in _sizes(node)):
        raise CaptureFailed(target="the graph", detail="it has symbolic sizes (dynamic shapes)")
    _clean(module)
    name_placeholders(gm, module, inputs)
    module.recompile()
    return module


def _exported(gm: fx.GraphModule, fakes: Sequence[Any]) -> fx.GraphModule:
    with preserve_node_meta(), torch.no_grad():
        module, signature = aot_export_module(gm, tuple(fakes), trace_joint=False, pre_dispatch=True)
    if signature.parameters or signature.buffers:
        raise CaptureFailed(target="the graph", detail="it holds parameters that are not its inputs")
    assert isinstance(module, fx.GraphModule)
    graph = module.graph
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    targets = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    with graph.inserting_before(output):
        for value in values[: len(targets)]:
            destination = placeholders[targets[value.name]]
            copy = graph.call_function(aten.copy_.default, (destination, value))
            copy.meta["val"] = destination.meta["val"]
        written = {value: placeholders[targets[value.name]] for value in values[: len(targets)]}
        given = dict(zip(graph.find_nodes(op="placeholder"), gm.graph.find_nodes(op="placeholder"), strict=True))
        theirs_all: Any = gm.graph.output_node().args[0]
        results = [
            _as_input(value, theirs, written, given)
            for value, theirs in zip(values[len(targets) :], theirs_all, strict=True)
        ]
    output.args = (tuple(results),)
    return module


def _as_input(value: Any, theirs: Any, written: dict[fx.Node, fx.Node], given: dict[fx.Node, fx.Node]) -> Any:
    """An output as the changed input itself, or a view of it, where it is that in Dynamo's graph (`theirs`).

    The functional graph has the new value, in memory of its own; the caller may write into what it gets. `written`:
    new value → the input it goes to; `given`: placeholder → Dynamo's.
    """
    views: list[fx.Node] = []
    base = value
    while isinstance(base, fx.Node) and base not in written and facts_of(base).kind == "view" and _aliases(base):
        views.append(base)
        base = base.args[0]
    if base not in written or not _same_memory(theirs, given[written[base]]):
        return value
    made = written[base]
    for view in reversed(views):
        copied = view.graph.node_copy(view, functools.partial(_swapped, view.args[0], made))
        copied.meta.update(view.meta)
        made = copied
    return made


def _swapped(old: Any, new: fx.Node, node: fx.Node) -> fx.Node:
    return new if node is old else node


def _same_memory(one: Any, other: fx.Node) -> bool:
    """Whether the example values of two of Dynamo's nodes are of one storage."""
    first, second = (node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in (one, other))
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)


def _traced(gm: fx.GraphModule, fakes: Sequence[Any], mode: Any) -> fx.GraphModule:
    def run(*values: Any) -> Any:
        return fx.Interpreter(gm).run(*values)

    functional = torch.func.functionalize(run, remove="mutations")
    with preserve_node_meta(), mode, torch.no_grad():
        return make_fx(functional, tracing_mode="fake")(*fakes)


def _sizes(node: fx.Node) -> Sequence[Any]:
    val = node.meta.get("val")
    return val.shape if isinstance(val, Tensor) else [val] if isinstance(val, torch.SymInt) else []


def _clean(module: fx.GraphModule) -> None:
    """Drop assertions, operators that do nothing on these inputs, and dead nodes; refuse baked-in tensors."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    fold_constants(module, "the graph")
    for node in list(graph.nodes):
        if node.target is operator.getitem and "val" not in node.meta:
            source, index = node.args
            node.meta["val"] = source.meta["val"][index]
        if node.target is aten.type_as.default:
            _as_cast(node)
        if node.target is aten._native_batch_norm_legit_no_training.default:
            _as_batch_norm(node)
        if node.op == "call_function" and _does_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _as_cast(node: fx.Node) -> None:
    """`x.type_as(y)` reads y's dtype only: as a cast it does not make y an input."""
    node.target = aten.to.dtype
    node.args = (node.args[0], node.meta["val"].dtype)


def _as_batch_norm(node: fx.Node) -> None:
    """Inference mode's operator with its two empty extra results, as the composite that people know."""
    if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in node.users):
        return
    x, weight, bias, mean, var, momentum, eps = node.args
    with node.graph.inserting_before(node):
        args = (x, weight, bias, mean, var, False, momentum, eps, False)
        whole = node.graph.call_function(aten.batch_norm.default, args)
    whole.meta.update(node.meta, val=node.meta["val"][0])
    for user in list(node.users):
        user.replace_all_uses_with(whole)


def _does_nothing(node: fx.Node) -> bool:
    source, out = node.args[0] if node.args else None, node.meta.get("val")
    if not isinstance(source, fx.Node) or not isinstance(out, Tensor):
        return False
    given = source.meta.get("val")
    same = isinstance(given, Tensor) and given.dtype == out.dtype and same_layout(given, out)
    if not same or facts_of(node).kind != "view":
        return False
    return _aliases(node) or not _reaches_output(node)


def _aliases(node: fx.Node) -> bool:
    """Whether its result is its input's memory; `repeat`, `cat` and an asked-for copy make memory of their own."""
    schema = getattr(node.target, "_schema", None)
    asked = bool(node.kwargs.get("copy"))
    for argument, value in zip(schema.arguments, node.args, strict=False) if schema is not None else ():
        asked = asked or (argument.name == "copy" and bool(value))
    return schema is not None and not asked and any(result.alias_info is not None for result in schema.returns)


def _reaches_output(node: fx.Node) -> bool:
    """Whether the caller gets this memory, as it is or seen through views: it must not be an input's then."""
    return any(user.op == "output" or (facts_of(user).kind == "view" and _reaches_output(user)) for user in node.users)


def _check(gm: fx.GraphModule, module: fx.GraphModule, inputs: Sequence[Any], what: str) -> None:
    """Both graphs on copies of the real inputs: same outputs, same mutated inputs. Raises CaptureFailed if not.

    A graph that draws random numbers is not compared.
    """
    if any(_random(node) for node in module.graph.nodes):
        return
    mutating = any(node.target is aten.copy_.default for node in module.graph.nodes)

    def run(which: fx.GraphModule) -> list[Any]:
        values = [value.detach().clone() if mutating else value for value in inputs]
        with torch.no_grad():
            out = which(*values)
        outputs = list(out) if isinstance(out, (tuple, list)) else [out]
        return outputs + (values if mutating else [])

    for position, (ours, theirs) in enumerate(zip(run(module), run(gm), strict=True)):
        if not isinstance(theirs, Tensor):
            continue
        rtol, atol = (1e-4, 1e-5) if theirs.dtype in (torch.float32, torch.float64) else (2e-2, 2e-2)
        try:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            detail = f"output {position} of the captured graph differs from the model's: {str(error).splitlines()[0]}"
            raise CaptureFailed(target=what, detail=detail) from error


def _random(node: fx.Node) -> bool:
    tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else ()
    return torch.Tag.nondeterministic_seeded in tags
