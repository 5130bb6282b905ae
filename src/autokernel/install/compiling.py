"""`torch.compile` for several variants of one model in one process, with and without CUDA graphs.

Dynamo keeps compiled code per Python code object and stops after eight entries, counting those of other backends: the
ninth install of a model would run eager without a word. `isolate_recompiles` (torch 2.12 on) gives each call of
torch.compile a cache of its own; before that, a wrapper with a fresh code object does it for models without breaks.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import fx

from autokernel.install.graphs import EagerGraphs

Mode = Literal["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-graphs", "eager-graphs"]

# in the order in which they are measured: what is quick to build, and most often the best, first
BASELINES: dict[Mode, str] = {
    "eager": "eager",
    "default": "torch.compile",
    "reduce-overhead": "torch.compile + CUDA graphs",
    "max-autotune": "max-autotune",
    "max-autotune-graphs": "max-autotune + CUDA graphs",
    "eager-graphs": "eager + CUDA graphs",
}
MODES: tuple[Mode, ...] = tuple(BASELINES)
GRAPHS: frozenset[Mode] = frozenset({"reduce-overhead", "max-autotune-graphs", "eager-graphs"})
UNCOMPILED: frozenset[Mode] = frozenset({"eager", "eager-graphs"})
TWINS: dict[Mode, Mode] = {
    "default": "reduce-overhead",
    "reduce-overhead": "default",
    "max-autotune": "max-autotune-graphs",
    "max-autotune-graphs": "max-autotune",
}  # the same code, with CUDA graphs and without

_TORCH_MODE: dict[Mode, str | None] = {
    "default": None,
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune-no-cudagraphs",
    "max-autotune-graphs": "max-autotune",
}


def modes_of(device_class: str) -> tuple[Mode, ...]:
    """The baselines besides eager that exist on a class of device, in the order to measure them in."""
    others = tuple(mode for mode in MODES if mode != "eager")
    return others if device_class == "cuda" else tuple(mode for mode in others if mode not in GRAPHS)


def compile_alone(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, **options)` whose compiled code is shared with no other call."""
    compiler: Callable[..., Any] = torch.compile
    if "isolate_recompiles" in inspect.signature(compiler).parameters:
        compiled: Callable[..., Any] = compiler(model, isolate_recompiles=True, **options)
    else:
        compiled = compiler(_fresh(model), **options)
    return compiled


def baseline(
    model: Callable[..., Any], mode: Mode, *, dynamic: bool | None = None, keep_outputs: bool = False
) -> Callable[..., Any]:
    """The model as a user would run it without autokernel: as it is, compiled whole, or replayed as a CUDA graph.

    dynamic=False compiles every shape for itself, as `install` does: the fair baseline where several will come.
    Under CUDA graphs an output is valid until the next call; keep_outputs: "eager-graphs" copies its outputs instead.
    """
    if mode == "eager":
        return model
    if mode == "eager-graphs":
        return EagerGraphs(model, owner=model, keep_outputs=keep_outputs)
    compiled = compile_alone(model, mode=_TORCH_MODE[mode], dynamic=dynamic)
    return stepping(compiled) if mode in GRAPHS else compiled


def stepping(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled with CUDA graphs, told before each call that outputs of the last one may be overwritten."""

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args, **kwargs)

    return call


def inductor_patches(mode: Mode) -> dict[str, Any]:
    """Inductor's settings for a mode, for `compile_fx(..., config_patches=...)`; CUDA graphs are one of them."""
    name = _TORCH_MODE[mode]
    if name is None:
        return {}
    from torch._inductor import list_mode_options

    if mode in GRAPHS:
        # as torch.compile(mode=...) itself does: a profiler that is torn down breaks later replays with older CUPTI
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
    return dict(list_mode_options(name))


def like_dynamo(module: Any, original: Any) -> None:
    """Make a rewritten graph known as Dynamo's `original`, whose placeholders it has, one by one.

    Otherwise AOT autograd takes every parameter for an input that may move, and CUDA graphs copy all weights into
    place at each call. The marks are read in torch/_functorch/_aot_autograd/frontend_utils.py.
    """
    ours, theirs = (list(graph.graph.find_nodes(op="placeholder")) for graph in (module, original))
    if len(ours) != len(theirs) or "dynamo_compile_id" not in original.meta:
        return
    for mine, node in zip(ours, theirs, strict=True):
        if not hasattr(node, "_dynamo_source"):
            return
        mine._dynamo_source = node._dynamo_source
        if "tensor_dict" in node.meta:
            mine.meta["tensor_dict"] = node.meta["tensor_dict"]
    module.meta["dynamo_compile_id"] = original.meta["dynamo_compile_id"]
    for name in ("_param_name_to_source", "_unstatic_param_names"):
        if hasattr(original, name):
            setattr(module, name, getattr(original, name))


OPERATORS = ("autokernel", "autokernel_attention")  # namespaces of the operators that we put into graphs


def make_known(module: fx.GraphModule) -> None:
    """Tell Inductor of our operators in a graph before it meets them.

    Of one it meets first, torch 2.11 writes out for its log all that the operator depends on, without sharing: a text
    that doubles with every layer of a residual network. Nothing else changes: it makes the same fallback by itself.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint

    exact = tag_to_layout_constraint(torch.Tag.needs_exact_strides)
    for node in module.graph.nodes:
        target = node.target
        ours = isinstance(target, torch._ops.OpOverload) and target.namespace in OPERATORS
        if ours and target not in lowerings:
            make_fallback(target, layout_constraint=exact, warn=False, override_decomp=True)


@contextlib.contextmanager
def room_for_variants() -> Iterator[None]:
    """Where `torch.compile` shares one limit of recompilations among all its calls (before 2.12), a limit that the
    variants of a proof don't reach: beyond it Dynamo runs eager without a word."""
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        yield
        return
    with torch._dynamo.config.patch(recompile_limit=_MANY):
        yield


_MANY = 64


def _fresh(model: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
