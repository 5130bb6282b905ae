"""Lowering: a region or function in terms of a small, closed set of ATen operators.

`lower` is what the fingerprint, the generator and the judge's oracle all look at, so that a norm written out and
`F.rms_norm` meet as the same graph. Every node has `meta["val"]`; placeholders keep the names and the order of the
inputs; the output is a tuple; no node mutates; no node is dead; identical nodes are one; nodes stand in depth-first
order from the outputs, so that the order in which the user wrote independent lines does not matter.

The closed set (all `torch.ops.aten.*`, sizes and dims are concrete, dims are never negative):

pointwise      any operator tagged `torch.Tag.pointwise`, in its Tensor overload. A Python scalar may stand where a
               tensor is declared, in any position (`sub.Tensor(1.0, x)`); it is a float if the result is floating.
               Type promotion is explicit: all tensor operands have the result's dtype (comparisons: one common dtype;
               `where`'s condition is bool). Operands broadcast as in PyTorch (implicitly; `expand` appears only where
               the user wrote it). add, sub, mul, div are always `.Tensor` (div: also `.Tensor_mode` with
               rounding_mode=); comparisons, remainder and fmod with a constant are `.Scalar`; powers are
               `pow.Tensor_Scalar`, `pow.Scalar`, `pow.Tensor_Tensor`; `clamp.default(x, min, max)` may have None or
               lack max; a uniform tensor may also be a 0-dim `full`; bitwise operators on bools are `logical_*`.
               Never seen: `alpha=`, `rsub`, `square`, in-place forms, exponents 2, 3, 0.5, -0.5, -1 (they are mul,
               sqrt, rsqrt, reciprocal).
cast           `_to_copy.default(x, dtype=...)`, nothing else in its kwargs; never to x's own dtype.
reduction      `sum.dim_IntList(x, dims, True)` `mean.dim(x, dims, True)` `amax(x, dims, True)` `amin(x, dims, True)`
               `prod.dim_int(x, dim, True)` `any.dims(x, dims, True)` `all.dims(x, dims, True)`
               `argmax(x, dim, True)` `argmin(x, dim, True)`: dims ascending, always keepdim, no `dtype=` (a cast stands
               before it). Without keepdim in the source a `reshape` follows.
index map      `reshape(x, shape)` (for view, squeeze, unsqueeze, flatten: the only one that changes the shape; like
               PyTorch's own it copies where strides do not allow a view), `permute(x, dims)` (for transpose, t),
               `expand(x, shape)`, `slice.Tensor(x, dim, start, end, step)` (for select, narrow, split, chunk, unbind:
               0 ≤ start ≤ end ≤ size), `cat(tensors, dim)`, `flip(x, dims)`, `clone(x, memory_format=...)` (identity on
               values; kept only where it changes strides, or where an output would be an input itself)
creation       `full(shape, value, dtype=...)`, `arange.start_step(start, end, step, dtype=...)`
gather         `gather(x, dim, index)` (cross-entropy's target column)

What has no such form stays the operator it is, and makes its region opaque: `mm`, `bmm`, `addmm`, `convolution`, fused
attention (`_scaled_dot_product_flash_attention_for_cpu` with `getitem`), `embedding`, `index`, sort, cumulative sums,
random numbers, ... `is_closed(node)` tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autokernel.errors import CaptureFailed
from autokernel.graph.decompose import COMPOSITES, decomposition_table
from autokernel.graph.opset import is_closed, kind_of
from autokernel.graph.simplify import fold_constants, simplify

__all__ = ["fake_inputs", "is_closed", "kind_of", "lower"]


def fake_inputs(inputs: Sequence[Any]) -> tuple[FakeTensorMode, list[Any]]:
    """Fresh fake tensors of the same size, stride, dtype and device, all of one new mode; scalars as they are."""
    mode = FakeTensorMode()

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device)

    with mode:
        return mode, [fake(value) for value in inputs]


class _Lowering(fx.Interpreter):
    """Runs a composite-level graph, putting our own decompositions in the place of some composites."""

    def __init__(self, module: fx.GraphModule, whole: bool) -> None:
        super().__init__(module)
        self.whole = whole

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten.scaled_dot_product_attention.default and not self.whole:
            return torch.ops.aten._scaled_dot_product_attention_math.default(*args, **kwargs)[0]
        replacement = COMPOSITES.get(target)
        if replacement is not None:
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return super().call_function(target, args, kwargs)


def lower(
    function: Callable[..., Any], inputs: Sequence[Any], *, whole: bool = True, names: Sequence[str] = ()
) -> fx.GraphModule:
    """Trace `function(*inputs)` (a region's GraphModule, or plain PyTorch) into lowered, functional form.

    `inputs` are tensors (real or fake; only their metadata is used) and Python scalars. The result takes the same
    inputs, called `names` (by default as a GraphModule's placeholders), and returns a tuple. With `whole=False` fused
    attention is written out as matrix products and a softmax (what a float64 oracle needs). Raises CaptureFailed when
    the function bakes a tensor of its own in as a constant; else whatever tracing raises.
    """

    def call(*args: Any) -> tuple[Any, ...]:
        out = function(*args)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    if not names and isinstance(function, fx.GraphModule):
        names = [node.name for node in function.graph.find_nodes(op="placeholder")]
    mode, fakes = fake_inputs(inputs)
    # a tracing context of a surrounding compilation would insist on its own fake mode
    with torch._guards.tracing(None), torch.no_grad(), mode:
        composite = make_fx(call, pre_dispatch=True, tracing_mode="fake")(*fakes)
    fold_constants(composite, "the function")
    composite.graph.eliminate_dead_code()
    run = _Lowering(composite, whole).run
    with torch._guards.tracing(None), torch.no_grad(), mode:
        traced = _functional(run, fakes, whole)
        if _in_place(traced):
            # composites of C++ write in place below functionalization's reach: take them apart first, then once more
            traced = _functional(fx.Interpreter(make_fx(run, tracing_mode="fake")(*fakes)).run, fakes, whole)
    for node in _in_place(traced):
        raise CaptureFailed(target="the function", detail=f"it writes to its inputs ({node.target})")
    return simplify(traced, names)


def _functional(run: Callable[..., Any], fakes: Sequence[Any], whole: bool) -> fx.GraphModule:
    functional = torch.func.functionalize(run, remove="mutations")
    return make_fx(functional, decomposition_table=decomposition_table(whole), tracing_mode="fake")(*fakes)


def _in_place(module: fx.GraphModule) -> list[fx.Node]:
    operators = [node for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return [node for node in operators if node.target._schema.is_mutable]
