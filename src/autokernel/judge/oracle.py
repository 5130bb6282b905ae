"""The float64 oracle: what a right kernel computes, what eager makes of it, and what rounding alone may do.

The reference is lowered with everything decomposed, then every floating cast, constant and `dtype=` in that graph is
raised to float64: a float64 run of code that casts to bfloat16 inside would be no oracle. Four more float64 runs
(sixteen of a small task with few sums) perturb every value by what rounding may do to it; the RMS change of an output
is its `spread`. Noise is u·ξ, relative, ξ uniform in [-1, 1], u the unit roundoff of

* each node that rounds: its own dtype in the task (nodes that select or move values are exact, and left alone), but
  float32 where a narrower value only becomes an output: the tolerance's ulp is what rounding an output once may do;
* each sum, mean and matrix product: that dtype too, times what partial sums may lose in any order of summation;
* each floating input: float32 (float64 for float64). A kernel that is exact for inputs nearer than float32 can tell
  apart is a right one: `exp2` with its scale folded in rounds the argument, which eager's `exp` does not.

Outputs that are integers, booleans or pure data movement have no tolerance: they must equal eager's own.

Not covered: random numbers, mutated inputs, complex numbers, bit casts. Such a task has no oracle (`NotComputable`).
A large task is evaluated whole, so it needs about twelve times the memory of its largest tensor in float32.

Everything here runs on one thread (`one_thread`): beside a busy child or compiler, a second one that waits at every
operator's end for a core makes it five times slower, and alone it would gain a third.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from autokernel.errors import AutokernelError, NotComputable
from autokernel.graph.lower import lower
from autokernel.records import Task

aten = torch.ops.aten

PERTURBED_RUNS, MORE_RUNS = 4, 16  # more where few sums stand for all elements, if the task is small
_FEW, _SMALL = 64, 1 << 18
_POOL = 1 << 19  # distinct noise values; nodes take slices of it from random places

# Values pass through these unrounded: index maps, selections, sign changes.
_EXACT = {
    aten.reshape.default, aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor,
    aten.cat.default, aten.flip.default, aten.clone.default, aten.gather.default, aten.where.self, aten.full.default,
    aten.amax.default, aten.amin.default, aten.maximum.default, aten.minimum.default, aten.clamp.default,
    aten.relu.default, aten.neg.default, aten.abs.default, aten.embedding.default, aten.index.Tensor,
    aten.index_select.default, aten.select.int, aten.split_with_sizes.default, aten.squeeze.dims,
    aten.unsqueeze.default, aten.scalar_tensor.default, aten.constant_pad_nd.default, aten.sort.default,
    aten.topk.default, aten.lift_fresh_copy.default, aten.alias.default,
}  # fmt: skip
_MOVES = _EXACT - {
    aten.amax.default, aten.amin.default, aten.maximum.default, aten.minimum.default, aten.clamp.default,
    aten.relu.default, aten.neg.default, aten.abs.default,
}  # fmt: skip
_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
_BIT_CASTS = {aten.view.dtype}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread in this process, for as long as the block runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Expected:
    """One output for one set of inputs. `reference` is float64 unless `exact`; `spread` is s of the tolerance."""

    eager: Tensor  # in the task's dtype
    reference: Tensor
    spread: Tensor | None
    exact: bool  # equal to eager's bits, or a failure


class Oracle:
    """Expected values of one task at one size. Building it traces the reference once (about 20–100 ms)."""

    def __init__(self, task: Task, reference: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        """`inputs` give the layouts only. Raises `NotComputable`."""
        if task.rng or task.mutates:
            raise NotComputable(task=task.id, detail="it draws random numbers" if task.rng else "it mutates its inputs")
        self.task = task
        self.reference = reference
        try:
            self.graph = lower(reference, inputs, whole=False)
        except (AutokernelError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise NotComputable(task=task.id, detail=f"its reference can't be lowered: {error}") from error
        self._refuse_what_cannot_be_raised()
        self.wide = _retyped(self.graph, torch.float64)
        self.runs = _runs(self.graph)
        self.moves_only = all(
            node.target in _MOVES or (node.target is aten._to_copy.default and _to_integer(node))
            for node in self.graph.graph.nodes
            if node.op == "call_function"
        )

    def expect(self, inputs: Sequence[Tensor], seed: int = 0) -> tuple[Expected, ...]:
        """What every output must be for these inputs. `seed` only moves the noise of the perturbed runs."""
        with torch.no_grad(), _full_precision(self.task):
            eager = _tuple(self.reference(*inputs))
            if self.moves_only or not any(value.is_floating_point() for value in eager):
                return tuple(Expected(value, value, None, True) for value in eager)
            raised = [value.double() if value.is_floating_point() else value for value in inputs]
            exact = _tuple(self.wide.run(*raised))
            spreads = self._spreads(raised, exact, seed)
            found = tuple(
                Expected(mine, wide, spread, False) if mine.is_floating_point() else Expected(mine, mine, None, True)
                for mine, wide, spread in zip(eager, exact, spreads, strict=True)
            )
        self._agree(found)
        return found

    def one_step_lower(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The task computed throughout in the next lower precision (float64 → float32 → bfloat16), cast back.

        None when the lower dtype can't run one of the task's operators.
        """
        lower_dtype = _lower_precision(self.graph)
        try:
            with torch.no_grad(), _full_precision(self.task):
                low = _retyped(self.graph, lower_dtype)
                cast = [value.to(lower_dtype) if value.is_floating_point() else value for value in inputs]
                found = _tuple(low.run(*cast))
        except (RuntimeError, TypeError):
            return None
        dtypes = [getattr(torch, spec.dtype) for spec in self.task.outputs]
        return tuple(value.to(dtype) for value, dtype in zip(found, dtypes, strict=True))

    def _spreads(self, inputs: list[Tensor], exact: tuple[Tensor, ...], seed: int) -> list[Tensor | None]:
        sums = [torch.zeros_like(value) if value.is_floating_point() else None for value in exact]
        for run in range(self.runs):
            perturbed = _tuple(_Perturbed(self.wide.graph_module, self.graph, seed * MORE_RUNS + run).run(*inputs))
            for total, value, centre in zip(sums, perturbed, exact, strict=True):
                if total is not None:
                    total += (value - centre).square_()
        return [None if total is None else total.div_(self.runs).sqrt_().nan_to_num_(0.0, 0.0, 0.0) for total in sums]

    def _agree(self, found: tuple[Expected, ...]) -> None:
        """Eager must be near the oracle, else the lowering means something else than the reference does."""
        for number, one in enumerate(found):
            if one.exact or one.spread is None or one.eager.shape != one.reference.shape:
                continue
            error = (one.eager.double() - one.reference).nan_to_num_(0.0, 0.0, 0.0)
            reference = one.reference.nan_to_num(0.0, 0.0, 0.0)
            info = torch.finfo(one.eager.dtype)
            usual = _rms(one.spread) + info.eps * _rms(reference)
            if _rms(error) > 200 * usual + info.tiny:
                raise NotComputable(
                    task=self.task.id,
                    detail=f"eager and the float64 graph disagree on output {number} "
                    f"(RMS {_rms(error):.3g}, where rounding explains {usual:.3g})",
                )

    def _refuse_what_cannot_be_raised(self) -> None:
        for node in self.graph.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target in _BIT_CASTS:
                raise NotComputable(task=self.task.id, detail=f"{node.target} reads bits, which have no wider form")
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise NotComputable(task=self.task.id, detail=f"{node.target} draws random numbers")
            value = node.meta.get("val")
            if isinstance(value, Tensor) and value.is_complex():
                raise NotComputable(task=self.task.id, detail=f"{node.target} gives complex numbers")


# --- raising a graph to another dtype ---------------------------------------------------------------------------------


class _Typed(fx.Interpreter):
    """The lowered graph with every floating dtype in it replaced; constants are converted when they are read."""

    def __init__(self, module: fx.GraphModule, dtype: torch.dtype) -> None:
        super().__init__(module)
        self.graph_module = module
        self.dtype = dtype

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _retyped(module: fx.GraphModule, dtype: torch.dtype) -> _Typed:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))

    def retype(value: Any) -> Any:
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    for node in graph.nodes:
        if node.op == "call_function":
            node.args = fx.node.map_aggregate(node.args, retype)
            node.kwargs = fx.node.map_aggregate(node.kwargs, retype)
    return _Typed(fx.GraphModule(module, graph), dtype)


def _lower_precision(module: fx.GraphModule) -> torch.dtype:
    values = [node.meta["val"] for node in module.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    return torch.float32 if any(value.dtype is torch.float64 for value in values) else torch.bfloat16


# --- perturbation -----------------------------------------------------------------------------------------------------


class _Perturbed(_Typed):
    """A float64 run in which every node that would round in the task's dtype is moved by what rounding may do."""

    def __init__(self, module: fx.GraphModule, original: fx.GraphModule, seed: int) -> None:
        super().__init__(module, torch.float64)
        self.dtypes = {
            node.name: node.meta["val"].dtype
            for node in original.graph.nodes
            if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
        }
        self.inputs_of = {node.name: node for node in original.graph.nodes}
        self.last = _last_rounded(original.graph)
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            return value
        dtype = self.inputs_of[str(target)].meta["val"].dtype
        return self._scaled(value, torch.finfo(dtype if dtype is torch.float64 else torch.float32).eps / 2)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        dtype = self.dtypes.get(n.name)
        if dtype is None or not dtype.is_floating_point or n.target in _EXACT or not isinstance(value, Tensor):
            return value
        if n.target is aten._to_copy.default and not self._narrows(n, dtype):
            return value
        roundoff = torch.finfo(dtype).eps / 2
        if n.name in self.last:
            roundoff = min(roundoff, torch.finfo(torch.float32).eps / 2)
        moved = self._scaled(value, roundoff)
        growth = self._summation(n, value)
        if growth is not None:
            growth = growth.nan_to_num_(0.0, 0.0, 0.0)
            moved += self._scaled(growth, min(roundoff, torch.finfo(torch.float32).eps / 2)) - growth
        return moved

    def _narrows(self, node: fx.Node, dtype: torch.dtype) -> bool:
        source = self.inputs_of[node.name].args[0]
        before = source.meta["val"].dtype if isinstance(source, fx.Node) else dtype
        return not before.is_floating_point or torch.finfo(before).bits > torch.finfo(dtype).bits

    def _summation(self, node: fx.Node, value: Tensor) -> Tensor | None:
        """What the partial sums' roundings may add up to, in units of u, whatever the order of summation.

        The u of float32 for narrower dtypes: PyTorch adds those up in float32, and so must a kernel.

        Added one after the other, K terms have partial sums S_k and an RMS error of at most u · sqrt(Σ S_k²). That is
        u · sqrt(K/2) · sqrt(Σ terms²) for terms of random sign, u · sqrt(K/3) · |Σ terms| for terms of one sign. Both
        are allowed for: a plain loop is a legitimate kernel; blocked sums are better.
        """
        args, _ = self.fetch_args_kwargs_from_env(node)
        if node.target in (aten.sum.dim_IntList, aten.mean.dim):
            count = args[0].numel() / max(value.numel(), 1)
            norm = torch.linalg.vector_norm(args[0], 2, args[1], *args[2:3])
            norm = norm / count if node.target is aten.mean.dim else norm
        elif node.target in _PRODUCTS:
            count = args[-1].shape[-2]
            norm = node.target(*(value.square() for value in args)).sqrt_()
        else:
            return None
        return torch.hypot(norm, value).mul_(math.sqrt(count / 2))

    def _scaled(self, value: Tensor, roundoff: float) -> Tensor:
        """value · (1 + roundoff·ξ): slices of a fixed pool from random places, so that drawing costs little."""
        factors = _factors(roundoff, value.device)
        flat = value.reshape(-1)
        moved = torch.empty_like(flat)
        for begin in range(0, flat.numel(), _POOL):
            part = flat[begin : begin + _POOL]
            start = int(torch.randint(_POOL, (), generator=self.generator))
            torch.mul(part, factors[start : start + part.numel()], out=moved[begin : begin + _POOL])
        return moved.reshape(value.shape)


def _runs(module: fx.GraphModule) -> int:
    """How many perturbed runs the spread is from.

    Four draws of one sum's rounding are small together by chance, one time in a hundred. Where there are many sums, or
    many elements of a magnitude, others make up for it (tolerance.py); a single row, or a single number, has none.
    """
    floats = [
        node
        for node in module.graph.nodes
        if isinstance(node.meta.get("val"), Tensor) and node.meta["val"].is_floating_point()
    ]
    few = any(node.op == "call_function" and 0 < node.meta["val"].numel() < _FEW for node in floats)
    large = any(node.meta["val"].numel() > _SMALL for node in floats)
    return MORE_RUNS if few and not large else PERTURBED_RUNS


def _last_rounded(graph: fx.Graph) -> set[str]:
    """Names of the nodes whose values only become outputs: moved or selected on the way, but read by no arithmetic."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and all(
            user.op == "output" or (user.name in found and user.target in _EXACT) for user in node.users
        ):
            found.add(node.name)
    return found


@functools.cache
def _factors(roundoff: float, device: torch.device) -> Tensor:
    """1 + roundoff·ξ, ξ uniform in [-1, 1], the pool twice over."""
    noise = torch.rand(_POOL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return noise.mul_(2).sub_(1).repeat(2).mul_(roundoff).add_(1).to(device)


@contextlib.contextmanager
def _full_precision(task: Task) -> Iterator[None]:
    """float32 products in float32 on a GPU, whatever the user's file has chosen: eager's error sets the tolerance."""
    if task.device_class == "cpu" or task.allow.tf32:
        yield
        return
    from autokernel.profile.ceilings_cuda import without_tf32

    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # an object of its own beside cuDNN's
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        with without_tf32():
            yield
    finally:
        convolutions.fp32_precision = before


def _to_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and not value.is_floating_point()


def _rms(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(max(values.numel(), 1))


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)
