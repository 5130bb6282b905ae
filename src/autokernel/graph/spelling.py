"""ATen calls as PyTorch people write them.

`spell(node, names)` returns an expression. An operator without a spelling here is written as the call it is,
`torch.ops.aten.name.overload(...)`: always right, only less pretty. Every printed reference is traced back and compared
with the region it came from, so a spelling that meant something else would be noticed.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

ATOM, POWER, UNARY, PRODUCT, SUM, COMPARE = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Text:
    """An expression and how loosely it binds (ATOM: names, calls, subscripts)."""

    code: str
    binds: int = ATOM

    def within(self, outer: int, *, right: bool = False) -> str:
        loose = self.binds > outer or (right and self.binds == outer)
        return f"({self.code})" if loose else self.code


Names = Mapping[fx.Node, Text]
Sizes = Callable[[int], str]
Spell = Callable[["_Call"], "Text | None"]


class _Call:
    """A node's arguments by position and name, as text on demand."""

    def __init__(self, node: fx.Node, names: Names, size: Sizes) -> None:
        self.node = node
        self.names = names
        self.size = size
        self.schema = node.target._schema.arguments  # type: ignore[union-attr]
        self.values: dict[str, Any] = {}
        for declared, value in zip(self.schema, node.args, strict=False):
            self.values[declared.name] = value
        self.values.update(node.kwargs)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    @property
    def first(self) -> Any:
        return self.node.args[0]

    def tensor(self, value: Any) -> str:
        """As the object of a method call or a subscript."""
        return self.text(value).within(ATOM)

    def text(self, value: Any) -> Text:
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (value < 0 or value == -math.inf):
            return Text(constant(value), UNARY if math.isfinite(value) else ATOM)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.text(item).code for item in value)
            return Text(f"[{inner}]")
        return Text(constant(value))

    def sizes(self, values: Any) -> str:
        return ", ".join(self.size(value) if isinstance(value, int) else self.text(value).code for value in values)

    def rest(self, skip: int = 1, *, drop: tuple[str, ...] = ()) -> str:
        """Arguments after the first `skip`: the leading ones by position, flags and everything after a gap by name."""
        parts, named = [], False
        for declared in self.schema[skip:]:
            if declared.name in drop or declared.name not in self.values:
                named = True
                continue
            value = self.values[declared.name]
            if declared.has_default_value() and value == declared.default_value:
                named = True
                continue
            named = named or isinstance(value, bool) or declared.kwarg_only
            code = self.text(value[0] if _one_dim(declared, value) else value).code
            parts.append(f"{declared.name}={code}" if named else code)
        return ", ".join(parts)


def _one_dim(declared: Any, value: Any) -> bool:
    return declared.name in ("dim", "dims") and isinstance(value, (list, tuple)) and len(value) == 1


def constant(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)


def spell(node: fx.Node, names: Names, size: Sizes, *, plain: bool = False) -> Text:
    """The expression for one call; its arguments are `names`. `plain`: only the operator's own call."""
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node)
        return Text(f"{names[source].within(ATOM)}[{index}]")
    call = _Call(node, names, size)
    if not plain:
        packet = node.target.overloadpacket.__name__  # type: ignore[union-attr]
        rule = _SPELLINGS.get(packet)
        written = rule(call) if rule is not None else _by_module(call, packet)
        if written is not None:
            return written
    return _own_call(call)


def _own_call(call: _Call) -> Text:
    node = call.node
    parts = [call.text(value).code for value in node.args]
    parts += [f"{key}={call.text(value).code}" for key, value in node.kwargs.items()]
    return Text(f"torch.ops.{node.target}({', '.join(parts)})")


def _by_module(call: _Call, packet: str) -> Text | None:
    """`torch.exp(x)`, `F.silu(x)`: functions of one tensor whose names PyTorch knows."""
    if len(call.node.args) != 1 or call.node.kwargs or not isinstance(call.first, fx.Node):
        return None
    if (hasattr(torch.nn.functional, packet) and not hasattr(torch, packet)) or packet in _PREFER_F:
        return Text(f"F.{packet}({call.text(call.first).code})")
    if inspect.isbuiltin(getattr(torch, packet, None)):
        return Text(f"torch.{packet}({call.text(call.first).code})")
    return None


_PREFER_F = frozenset({"relu", "gelu", "silu", "softplus", "hardswish", "mish", "elu", "selu"})


# --- rules ------------------------------------------------------------------------------------------------------------


def _binary(sign: str, binds: int) -> Spell:
    def rule(call: _Call) -> Text | None:
        if call.get("alpha", 1) != 1 or call.get("rounding_mode") is not None or len(call.node.args) != 2:
            return None
        left, right = call.node.args
        if not isinstance(left, fx.Node):
            return None
        a, b = call.text(left), call.text(right)
        return Text(f"{a.within(binds)} {sign} {b.within(binds, right=True)}", binds)

    return rule


def _rsub(call: _Call) -> Text | None:
    if call.get("alpha", 1) != 1:
        return None
    x, other = call.node.args[:2]
    return Text(f"{call.text(other).within(SUM)} - {call.text(x).within(SUM, right=True)}", SUM)


def _prefix(sign: str) -> Spell:
    return lambda call: Text(f"{sign}{call.text(call.first).within(UNARY)}", UNARY)


def _method(*drop: str, name: str = "") -> Spell:
    def rule(call: _Call) -> Text | None:
        if not isinstance(call.first, fx.Node):
            return None
        own = name or call.node.target.overloadpacket.__name__  # type: ignore[union-attr]
        return Text(f"{call.tensor(call.first)}.{own}({call.rest(drop=drop)})")

    return rule


def _sized(name: str) -> Spell:
    """Methods that take sizes or dims one by one: `x.view(2, 3)`."""

    def rule(call: _Call) -> Text | None:
        values = call.node.args[1]
        if not isinstance(values, (list, tuple)) or call.node.kwargs or not values:
            return None
        own = ", ".join(map(str, values)) if name == "permute" else call.sizes(values)
        return Text(f"{call.tensor(call.first)}.{name}({own})")

    return rule


def _function(name: str, skip: int = 1, order: tuple[str, ...] = ()) -> Spell:
    """A library function whose parameters are named as the operator's; `order`: those given by position."""

    def rule(call: _Call) -> Text | None:
        parts = [call.text(value).code for value in call.node.args[:skip]]
        rest = call.rest(skip)
        return Text(f"{name}({', '.join([*parts, rest] if rest else parts)})")

    return rule


def _slice(call: _Call) -> Text | None:
    dim, start, end, step = (call.get(name) for name in ("dim", "start", "end", "step"))
    rank = call.first.meta["val"].dim()
    dim = (dim or 0) % rank
    extent = call.first.meta["val"].shape[dim]
    begin = "" if not start else str(start)
    stop = "" if end is None or end >= extent else call.size(end)
    every = "" if step in (None, 1) else f":{step}"
    places = [":"] * dim + [f"{begin}:{stop}{every}"]
    return Text(f"{call.tensor(call.first)}[{', '.join(places)}]")


def _select(call: _Call) -> Text | None:
    dim, index = call.node.args[1:3]
    assert isinstance(dim, int)
    places = [":"] * (dim % call.first.meta["val"].dim()) + [str(index)]
    return Text(f"{call.tensor(call.first)}[{', '.join(places)}]")


def _cast(call: _Call) -> Text | None:
    """`x.float()`, `x.to(torch.bfloat16)`; copies with a memory format or device are not casts."""
    dtype = call.get("dtype")
    extra = [key for key in call.values if key not in ("self", "dtype") and call.values[key] not in (None, False)]
    if dtype is None or [key for key in extra if key not in ("device", "layout", "pin_memory")]:
        return None
    if call.first.meta["val"].dtype == dtype:
        return None
    return Text(f"{call.tensor(call.first)}.to({dtype})")


def _clone(call: _Call) -> Text | None:
    layout = call.get("memory_format")
    if layout is torch.contiguous_format:
        # `contiguous()` of what is contiguous already would be no copy
        contiguous = call.first.meta["val"].is_contiguous()
        own = "clone(memory_format=torch.contiguous_format)" if contiguous else "contiguous()"
        return Text(f"{call.tensor(call.first)}.{own}")
    return Text(f"{call.tensor(call.first)}.clone()") if layout in (None, torch.preserve_format) else None


def _softmax(name: str) -> Spell:
    def rule(call: _Call) -> Text | None:
        if call.node.target._overloadname != "int":  # type: ignore[union-attr]
            return None
        dtype = f", dtype={call.get('dtype')}" if call.get("dtype") is not None else ""
        return Text(f"F.{name}({call.text(call.first).code}, dim={call.get('dim')}{dtype})")

    return rule


def _norm(name: str) -> Spell:
    def rule(call: _Call) -> Text | None:
        shape = call.get("normalized_shape")
        parts = [call.text(call.first).code, f"({call.sizes(shape)},)" if len(shape) == 1 else f"({call.sizes(shape)})"]
        parts += [f"{key}={call.text(call.get(key)).code}" for key in ("weight", "bias") if call.get(key) is not None]
        if call.get("eps") is not None:
            parts.append(f"eps={call.get('eps')!r}")
        return Text(f"F.{name}({', '.join(parts)})")

    return rule


def _batch_norm(call: _Call) -> Text | None:
    if call.get("training"):
        return None
    x, mean, var = call.first, call.get("running_mean"), call.get("running_var")
    parts = [call.text(value).code for value in (x, mean, var)]
    parts += [f"{key}={call.text(call.get(key)).code}" for key in ("weight", "bias") if call.get(key) is not None]
    return Text(f"F.batch_norm({', '.join(parts)}, eps={call.get('eps')!r})")


_REDUCTIONS = ("none", "mean", "sum")


def _cross_entropy(call: _Call) -> Text | None:
    parts = [call.text(value).code for value in call.node.args[:2]]
    if call.get("weight") is not None:
        parts.append(f"weight={call.text(call.get('weight')).code}")
    reduction = call.get("reduction", 1)
    if reduction != 1:
        parts.append(f'reduction="{_REDUCTIONS[reduction]}"')
    if call.get("ignore_index", -100) != -100:
        parts.append(f"ignore_index={call.get('ignore_index')}")
    if call.get("label_smoothing", 0.0):
        parts.append(f"label_smoothing={call.get('label_smoothing')!r}")
    return Text(f"F.cross_entropy({', '.join(parts)})")


def _gelu(call: _Call) -> Text:
    kind = call.get("approximate", "none")
    how = f', approximate="{kind}"' if kind != "none" else ""
    return Text(f"F.gelu({call.text(call.first).code}{how})")


def _embedding(call: _Call) -> Text | None:
    if any(call.get(name) for name in ("scale_grad_by_freq", "sparse")):
        return None
    weight, index = call.node.args[:2]
    return Text(f"F.embedding({call.text(index).code}, {call.text(weight).code})")


def _created(name: str) -> Spell:
    def rule(call: _Call) -> Text | None:
        parts = [call.text(value).code for value in call.node.args]
        if name in ("zeros", "ones"):
            parts = [call.sizes(call.node.args[0])]
        if name == "full":
            parts[0] = f"({call.sizes(call.node.args[0])},)" if call.node.args[0] else "()"
        val = call.node.meta["val"]
        if not isinstance(val, Tensor) or not parts[0]:
            return None
        return Text(f"torch.{name}({', '.join(parts)}, dtype={val.dtype})")

    return rule


def _where(call: _Call) -> Text | None:
    return Text(f"torch.where({', '.join(call.text(value).code for value in call.node.args)})")


_METHODS = (
    *("pow", "mean", "sum", "amax", "amin", "prod", "any", "all", "argmax", "argmin", "max", "min", "std", "var"),
    *("logsumexp", "cumsum", "norm", "unsqueeze", "squeeze", "transpose", "t", "unbind", "chunk", "split"),
    *("repeat_interleave", "masked_fill", "clamp", "clamp_min", "clamp_max", "triu", "tril", "flip", "roll", "flatten"),
    *("unflatten", "narrow", "gather", "index_select", "type_as", "contiguous", "sort", "topk", "movedim"),
)
_SPELLINGS: dict[str, Spell] = {
    "add": _binary("+", SUM),
    "sub": _binary("-", SUM),
    "mul": _binary("*", PRODUCT),
    "div": _binary("/", PRODUCT),
    "matmul": _binary("@", PRODUCT),
    "eq": _binary("==", COMPARE),
    "ne": _binary("!=", COMPARE),
    "lt": _binary("<", COMPARE),
    "le": _binary("<=", COMPARE),
    "gt": _binary(">", COMPARE),
    "ge": _binary(">=", COMPARE),
    "rsub": _rsub,
    "neg": _prefix("-"),
    "bitwise_not": _prefix("~"),
    **{name: _method() for name in _METHODS},
    "split_with_sizes": _method(name="split"),
    **{name: _sized(name) for name in ("view", "reshape", "expand", "permute", "repeat")},
    "_unsafe_view": _sized("view"),
    "slice": _slice,
    "select": _select,
    "to": _cast,
    "_to_copy": _cast,
    "clone": _clone,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "layer_norm": _norm("layer_norm"),
    "rms_norm": _norm("rms_norm"),
    "batch_norm": _batch_norm,
    "group_norm": _function("F.group_norm", 2),
    "cross_entropy_loss": _cross_entropy,
    "gelu": _gelu,
    "linear": _function("F.linear", 3),
    "embedding": _embedding,
    "scaled_dot_product_attention": _function("F.scaled_dot_product_attention", 3),
    **{name: _function(f"F.{name}", 7) for name in ("conv1d", "conv2d", "conv3d")},
    "max_pool2d": _function("F.max_pool2d", 6),
    "avg_pool2d": _function("F.avg_pool2d", 6),
    "adaptive_avg_pool2d": _function("F.adaptive_avg_pool2d", 2),
    "cat": _function("torch.cat"),
    "stack": _function("torch.stack"),
    "where": _where,
    **{name: _function(f"torch.{name}", 2) for name in ("maximum", "minimum", "bmm", "mm", "lerp", "outer")},
    "addmm": _function("torch.addmm", 3),
    **{name: _created(name) for name in ("full", "zeros", "ones", "arange")},
}
