"""Canonical form of a traced graph: one spelling per operation, no identities, no duplicates, one order.

`RULES` holds one function per family of operators; an operator without a rule is copied as it is. A rule gets the
emitter, the traced node and its already rewritten arguments, and returns the node(s) that stand for it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from autokernel.errors import CaptureFailed
from autokernel.graph.emitter import Emitter, same_layout, value_of
from autokernel.graph.opset import CAST, is_pointwise

aten = torch.ops.aten
Rule = Callable[[Emitter, fx.Node, tuple[Any, ...], dict[str, Any]], Any]


def fold_constants(module: fx.GraphModule, what: str) -> None:
    """Literals of one element (`torch.tensor(0.5)`) become `full`; any other tensor baked in is refused.

    A baked tensor may be an intermediate value of a transformation that was live while tracing: silently wrong.
    """
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            continue  # a part of a higher-order operator
        lifted = (aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.detach.default, aten.alias.default)
        literal = value.numel() == 1 and all(user.target in lifted for user in node.users)
        if not literal:
            if not node.users:
                module.graph.erase_node(node)
                continue
            raise CaptureFailed(target=what, detail=f"a tensor of shape {tuple(value.shape)} is baked in as a constant")
        with module.graph.inserting_before(node):
            full = module.graph.call_function(
                aten.full.default, (list(value.shape), value.item()), {"dtype": value.dtype}
            )
            full.meta.update(node.meta)
        node.replace_all_uses_with(full)
        module.graph.erase_node(node)
    module.recompile()


def simplify(module: fx.GraphModule, names: Sequence[str] = ()) -> fx.GraphModule:
    """Rebuild `module` by the rules; placeholders take `names` where given. Nodes of the result have `val`."""
    vals = [node.meta.get("val") for node in module.graph.nodes]
    mode = next((val.fake_mode for val in vals if hasattr(val, "fake_mode")), None)
    if mode is None:
        mode = torch._subclasses.FakeTensorMode()
    emitter = Emitter(mode)
    env: dict[fx.Node, Any] = {}
    taken = iter(names)
    outputs: Any = ()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            name = next(taken, None) or _plain(str(node.target))
            env[node] = emitter.placeholder(name, node.meta.get("val"), {})
        elif node.op == "output":
            outputs = map_arg(node.args[0], lambda n: env[n])
        elif node.op == "call_function":
            args, kwargs = map_arg(node.args, lambda n: env[n]), map_arg(node.kwargs, lambda n: env[n])
            rule = RULES.get(node.target) or _default
            env[node] = rule(emitter, node, args, kwargs)
        else:
            raise CaptureFailed(target="the function", detail=f"lowering left {node.op} {node.target}")
    emitter.graph.output(tuple(_output(emitter, out) for out in outputs))
    return _ordered(fx.GraphModule({}, emitter.graph))


def _plain(name: str) -> str:
    """make_fx's "x_1" back to "x"."""
    return name.removesuffix("_1")


def _output(emitter: Emitter, node: Any) -> Any:
    """An output that is an input itself is a copy: a kernel has to write it."""
    if isinstance(node, fx.Node) and node.op == "placeholder" and isinstance(value_of(node), Tensor):
        return emitter.call(aten.clone.default, node)
    return node


def _ordered(module: fx.GraphModule) -> fx.GraphModule:
    """Nodes in depth-first order from the outputs (dead ones gone), placeholders first, all of them kept."""
    source = module.graph
    target = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> None:
        new = target.node_copy(node, lambda n: env[n])
        new.meta = dict(node.meta)
        env[node] = new

    for node in source.find_nodes(op="placeholder"):
        copy(node)
    stack = [(source.output_node(), False)]
    while stack:
        node, ready = stack.pop()
        if node in env:
            continue
        if ready:
            copy(node)
            continue
        stack.append((node, True))
        stack.extend((argument, False) for argument in reversed(node.all_input_nodes) if argument not in env)
    result = fx.GraphModule({}, target)
    return result


# --- rules ------------------------------------------------------------------------------------------------------------


def _default(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and is_pointwise(op):
        return _pointwise(emit, op, args, kwargs)
    return emit.call(op, *args, **kwargs)


def _pointwise(emit: Emitter, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tensor overload, explicit promotion, floats for constants of floating operations."""
    kwargs = dict(kwargs)
    alpha = kwargs.pop("alpha", 1)
    if len(args) == 3 and op in (aten.add.Scalar, aten.sub.Scalar):
        alpha, args = args[2], args[:2]
    if op is aten.mul.Tensor and args[1] == 1 and _same_dtype(args[0], args[1]):
        return args[0]
    if alpha != 1:
        scaled = (
            args[1] * alpha
            if not isinstance(args[1], fx.Node)
            else _pointwise(emit, aten.mul.Tensor, (args[1], alpha), {})
        )
        args = (args[0], scaled)
    op = _tensor_overload(op)
    tensors = [value_of(arg) for arg in _flat(args) if isinstance(arg, fx.Node)]
    if not tensors:
        return emit.call(op, *args, **kwargs)
    with emit.mode, torch.no_grad():
        result = op(*map_arg(args, value_of), **map_arg(kwargs, value_of))
    if not isinstance(result, Tensor):
        return emit.call(op, *args, **kwargs)
    dtype = result.dtype
    if dtype == torch.bool:
        dtype = _common(op, args)
        op = _LOGICAL.get(op, op)
    if op is aten.where.self:
        condition = args[0] if value_of(args[0]).dtype == torch.bool else emit.cast(args[0], torch.bool)
        return emit.call(op, condition, *(_as(emit, arg, dtype) for arg in args[1:]))
    return emit.call(op, *(_as(emit, arg, dtype, position, op) for position, arg in enumerate(args)), **kwargs)


def _same_dtype(x: Any, scalar: Any) -> bool:
    return isinstance(x, fx.Node) and torch.result_type(value_of(x), scalar) == value_of(x).dtype


def _common(op: Any, args: tuple[Any, ...]) -> torch.dtype:
    """The dtype in which a comparison is made."""
    dtype: torch.dtype | None = None
    operands = [
        value_of(arg) if isinstance(arg, fx.Node) else arg for arg in args if isinstance(arg, (fx.Node, int, float))
    ]
    if len(operands) == 2:
        return torch.result_type(*operands)
    for operand in operands:
        if isinstance(operand, Tensor):
            dtype = operand.dtype if dtype is None else torch.promote_types(dtype, operand.dtype)
    assert dtype is not None
    return dtype


def _as(emit: Emitter, arg: Any, dtype: torch.dtype, position: int = 0, op: Any = None) -> Any:
    if isinstance(arg, fx.Node) and isinstance(value_of(arg), Tensor):
        return emit.cast(arg, dtype)
    declared = str(op._schema.arguments[position].type) if op is not None else "Tensor"
    plain = isinstance(arg, (int, float)) and not isinstance(arg, bool)
    if plain and dtype.is_floating_point and any(word in declared for word in ("Tensor", "number", "Scalar")):
        return float(arg)
    return arg


def _flat(args: Any) -> list[Any]:
    return [item for arg in args for item in (_flat(arg) if isinstance(arg, (list, tuple)) else [arg])]


def _tensor_overload(op: Any) -> Any:
    """`add.Scalar` as `add.Tensor`: the form that Python's `x + 1` has anyway."""
    packet = op.overloadpacket
    if packet is aten.where:
        return aten.where.self
    if packet in _ARITHMETIC and op._overloadname in ("Scalar", "Scalar_mode"):
        return getattr(packet, op._overloadname.replace("Scalar", "Tensor"))
    return op


# on bools the bitwise operators are the logical ones
_LOGICAL: dict[Any, Any] = {
    aten.bitwise_not.default: aten.logical_not.default,
    aten.bitwise_and.Tensor: aten.logical_and.default,
    aten.bitwise_or.Tensor: aten.logical_or.default,
    aten.bitwise_xor.Tensor: aten.logical_xor.default,
}
_ARITHMETIC = (aten.add, aten.sub, aten.mul, aten.div)


def _rsub(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    return _pointwise(emit, aten.sub.Tensor, (args[1], args[0]), {"alpha": alpha})


_POWERS = {
    1.0: lambda emit, x: x,
    2.0: lambda emit, x: emit.call(aten.mul.Tensor, x, x),
    3.0: lambda emit, x: emit.call(aten.mul.Tensor, emit.call(aten.mul.Tensor, x, x), x),
    0.5: lambda emit, x: emit.call(aten.sqrt.default, x),
    -0.5: lambda emit, x: emit.call(aten.rsqrt.default, x),
    -1.0: lambda emit, x: emit.call(aten.reciprocal.default, x),
}


def _pow(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, exponent = args
    floating = value_of(x).dtype.is_floating_point
    # a bool's power is an integer; its product would be a bool
    integer = isinstance(exponent, int) and value_of(x).dtype != torch.bool
    whole = float(exponent) in (1.0, 2.0, 3.0) and integer
    if float(exponent) in _POWERS and (floating or whole):
        return _POWERS[float(exponent)](emit, x)
    return _pointwise(emit, node.target, args, kwargs)


def _square(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.call(aten.mul.Tensor, args[0], args[0])


def _reshape(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.reshape(args[0], value_of(node).shape)


def _permute(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rank = value_of(args[0]).dim()
    dims = list(range(rank))
    if node.target is aten.permute.default:
        dims = list(args[1])
    elif node.target is aten.t.default:
        dims.reverse()
    else:
        a, b = args[1] % max(rank, 1), args[2] % max(rank, 1)
        if rank:
            dims[a], dims[b] = dims[b], dims[a]
    return emit.permute(args[0], dims)


def _flip(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.call(aten.flip.default, args[0], sorted(dim % value_of(args[0]).dim() for dim in args[1]))


def _expand(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.expand(args[0], value_of(node).shape)


def _slice(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(enumerate(args[1:]))
    return emit.slice(args[0], given.get(0, 0), given.get(1), given.get(2), given.get(3, 1))


def _select(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.select(args[0], args[1], args[2])


def _unbind(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dim = args[1] if len(args) > 1 else 0
    return tuple(emit.select(args[0], dim, index) for index in range(value_of(args[0]).shape[dim]))


def _split(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    parts, start = [], 0
    for part in value_of(node):
        size = part.shape[dim]
        parts.append(emit.slice(args[0], dim, start, start + size))
        start += size
    return tuple(parts)


def _getitem(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source, index = args
    return emit.call(operator.getitem, source, index) if isinstance(source, fx.Node) else source[index]


def _same(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


def _clone(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if same_layout(value_of(node), value_of(args[0])):
        return args[0]
    layout = {} if not value_of(node).is_contiguous() else {"memory_format": torch.contiguous_format}
    return emit.call(aten.clone.default, args[0], **(layout or kwargs))


def _to_copy(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = emit.cast(args[0], value_of(node).dtype)
    if value_of(node).device != value_of(out).device:
        return emit.call(CAST, *args, **kwargs)
    return out if same_layout(value_of(out), value_of(node)) else _clone(emit, node, (out,), {})


def _cat(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = value_of(node).dtype
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % value_of(node).dim()
    # the legacy empty one-dimensional tensor is skipped by cat whatever the other shapes are
    parts = [emit.cast(part, dtype) for part in args[0] if tuple(value_of(part).shape) != (0,)]
    return parts[0] if len(parts) == 1 else emit.call(aten.cat.default, parts, dim)


def _gather(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.call(aten.gather.default, args[0], args[1] % value_of(args[0]).dim(), args[2])


def _full(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value: Any = _FILL.get(node.target)
    if value is None:
        value = args[0] if node.target is aten.scalar_tensor.default else args[1]
    out = value_of(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and out.dtype.is_floating_point:
        value = float(value)
    return emit.full(out.shape, value, out)


_FILL: dict[Any, int] = {
    aten.zeros.default: 0,
    aten.ones.default: 1,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
}


def _new_full(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return emit.full(value_of(node).shape, args[2], value_of(node))


def _arange(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    where = {} if value_of(node).device.type == "cpu" else {"device": value_of(node).device}
    return emit.call(aten.arange.start_step, start, end, step, dtype=value_of(node).dtype, **where)


def _reduce(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any spelling of a reduction as its canonical overload over ascending dims with keepdim, then a reshape."""
    op, out = _REDUCTION[node.target], value_of(node)
    x, shape = args[0], list(value_of(args[0]).shape)
    if not shape:
        x, shape = emit.reshape(x, [1]), [1]
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if dims is None or dims == []:
        dims = list(range(len(shape)))
    dims = sorted({dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims)})
    if op in (aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int):
        x = emit.cast(x, out.dtype)
    kept = [1 if dim in dims else size for dim, size in enumerate(shape)]
    if op in _ONE_DIM and len(dims) > 1:
        if op is not aten.prod.dim_int and dims != list(range(len(shape))):
            return emit.call(node.target, *args, **kwargs)
        x = emit.reshape(
            emit.permute(x, [d for d in range(len(shape)) if d not in dims] + dims), _flattened(shape, dims)
        )
        reduced = emit.call(op, x, value_of(x).dim() - 1, True)
    else:
        reduced = emit.call(op, x, dims[0] if op in _ONE_DIM else dims, True)
    return emit.reshape(emit.reshape(reduced, kept), out.shape)


def _flattened(shape: list[int], dims: list[int]) -> list[int]:
    return [size for dim, size in enumerate(shape) if dim not in dims] + [math.prod(shape[dim] for dim in dims)]


_ONE_DIM = frozenset({aten.prod.dim_int, aten.argmax.default, aten.argmin.default})
_REDUCTION: dict[Any, Any] = {
    aten.sum.default: aten.sum.dim_IntList,
    aten.sum.dim_IntList: aten.sum.dim_IntList,
    aten.mean.default: aten.mean.dim,
    aten.mean.dim: aten.mean.dim,
    aten.amax.default: aten.amax.default,
    aten.max.default: aten.amax.default,
    aten.amin.default: aten.amin.default,
    aten.min.default: aten.amin.default,
    aten.prod.default: aten.prod.dim_int,
    aten.prod.dim_int: aten.prod.dim_int,
    aten.any.default: aten.any.dims,
    aten.any.dim: aten.any.dims,
    aten.any.dims: aten.any.dims,
    aten.all.default: aten.all.dims,
    aten.all.dim: aten.all.dims,
    aten.all.dims: aten.all.dims,
    aten.argmax.default: aten.argmax.default,
    aten.argmin.default: aten.argmin.default,
}

RULES: dict[Any, Rule] = {
    **dict.fromkeys(_REDUCTION, _reduce),
    **dict.fromkeys((*_FILL, aten.full.default, aten.full_like.default, aten.scalar_tensor.default), _full),
    aten.new_full.default: _new_full,
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _arange),
    **dict.fromkeys(
        (
            aten.view.default,
            aten._unsafe_view.default,
            aten.reshape.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.unsqueeze.default,
        ),
        _reshape,
    ),
    **dict.fromkeys((aten.permute.default, aten.t.default, aten.transpose.int), _permute),
    aten.expand.default: _expand,
    aten.flip.default: _flip,
    aten.gather.default: _gather,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), _split),
    operator.getitem: _getitem,
    **dict.fromkeys(
        (aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default), _same
    ),
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.cat.default: _cat,
    **dict.fromkeys((aten.rsub.Scalar, aten.rsub.Tensor), _rsub),
    aten.pow.Tensor_Scalar: _pow,
    aten.square.default: _square,
}
