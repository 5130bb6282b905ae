"""Each winner as a `torch.library` operator: allocate the outputs, call `launch`, nothing else.

`Library.define` and `impl` rather than `custom_op`: 4.4 µs a call from Inductor's code against 12.4. The operator's
name carries a hash of the kernel and its task, so compiled graphs may be cached across processes.

Guards. Dtype, dims and device are fixed when the graph is compiled (`misfit`), since Dynamo guards them; strides and
16-byte alignment are looked at on every call, because Inductor and views may change them. A miss runs the region as it
was captured and is counted.

On CUDA a call launches on the current stream and waits for nothing, so that it may be captured in a CUDA graph; `warm`
makes the first launch, in which Triton compiles and loads, before any capture begins. A replayed graph calls no
operator: guards were looked at when it was captured, on the addresses that the graph keeps.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from autokernel.install import Winner
from autokernel.install.kernel import load
from autokernel.records import Task, TensorSpec

NAMESPACE = "autokernel"
_ALIGNMENT = 16  # bytes
_KEYS = {"cpu": "CPU", "cuda": "CUDA"}  # device class → dispatch key

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_known: dict[str, Operator] = {}
_lock = threading.Lock()


@dataclass
class Operator:
    """A registered winner. `overload` is what goes into a graph; `misses` counts calls its guards turned away."""

    name: str  # "autokernel::rms_norm_1a2b3c4d", as the profiler shows it
    winner: Winner
    overload: Any
    misses: int = 0


def operator(winner: Winner, original: fx.GraphModule) -> Operator:
    """The operator for a winner, registered on first use in this process.

    `original` is the captured region, run when a guard misses. Raises what loading the kernel raises.
    """
    task = winner.task
    content = "\n".join((winner.source, task.fingerprint, task.shape_key, _layout(task)))
    short = hashlib.sha256(content.encode()).hexdigest()[:10]
    with _lock:
        if short not in _known:
            _known[short] = _register(f"{_slug(task.id)}_{short}", winner, original)
        return _known[short]


def misfit(task: Task, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> str | None:
    """Why a kernel of `task` can't stand in for a region with these boundary nodes; None when it can."""
    if not inputs:
        return "it has no tensor inputs"  # the dispatcher could not tell whose operator it is
    for specs, nodes, what in ((task.inputs, inputs, "input"), (task.outputs, outputs, "output")):
        if len(specs) != len(nodes):
            return f"{len(nodes)} {what}s where the task has {len(specs)}"
        for spec, node in zip(specs, nodes, strict=True):
            value = node.meta.get("val")
            if not isinstance(value, Tensor):
                return f"{what} {node.name} is not a tensor"
            reason = _differs(spec, value, device=task.device_class)
            if reason:
                return f"{what} {node.name}: {reason}"
    return None


def _differs(spec: TensorSpec, value: Tensor, device: str) -> str | None:
    if value.device.type != device:
        return f"on {value.device.type}, the kernel is for {device}"
    if str(value.dtype) != f"torch.{spec.dtype}":
        return f"{value.dtype}, the kernel is for {spec.dtype}"
    if not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        return "its shape is symbolic"
    if tuple(value.shape) != spec.shape:
        return f"shape {tuple(value.shape)}, the kernel is for {spec.shape}"
    if _effective(value.shape, value.stride()) != _effective(spec.shape, spec.stride):
        return f"strides {value.stride()}, the kernel is for {spec.stride}"
    return None


def _effective(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides that matter: the step along an extent of one is never taken."""
    return tuple(0 if size == 1 else step for size, step in zip(shape, stride, strict=True))


def _slug(text: str) -> str:
    """ "03-residual-norm" → "residual_norm_03": an operator's name may not begin with a digit."""
    number, words = re.fullmatch(r"(\d*)(.*)", re.sub(r"\W+", "_", text), re.DOTALL).groups()  # type: ignore[union-attr]
    return "_".join(part for part in (words.strip("_").lower() or "kernel", number) if part)


def _layout(task: Task) -> str:
    return repr([(spec.dtype, spec.shape, spec.stride) for spec in (*task.inputs, *task.outputs)])


def _register(name: str, winner: Winner, original: fx.GraphModule) -> Operator:
    task = winner.task
    arguments = ", ".join(f"Tensor a{position}" for position in range(len(task.inputs)))
    returned = "Tensor" if len(task.outputs) == 1 else f"({', '.join('Tensor' for _ in task.outputs)})"
    launch = load(winner.source)
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    _library.define(f"{name}({arguments}) -> {returned}", tags=tags)
    entry = Operator(f"{NAMESPACE}::{name}", winner, getattr(getattr(torch.ops, NAMESPACE), name).default)
    run = _implementation(task, launch, original, entry)
    _library.impl(name, _on_its_device(run) if task.device_class == "cuda" else run, _KEYS[task.device_class])
    torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(task), lib=_library)
    return entry


def warm(winner: Winner, device: torch.device) -> None:
    """Launch the kernel once on tensors of zeros laid out as its task's: zero is a valid index too.

    Raises what the kernel's compiler or the device raises, and MemoryError or torch.OutOfMemoryError.
    """
    with torch.cuda.device(device):
        tensors = [_zeros(spec, device) for spec in (*winner.task.inputs, *winner.task.outputs)]
        load(winner.source)(*tensors)
        torch.cuda.synchronize()


def _zeros(spec: TensorSpec, device: torch.device) -> Tensor:
    steps = zip(spec.shape, spec.stride, strict=True)
    extent = 0 if 0 in spec.shape else 1 + sum((size - 1) * step for size, step in steps)
    base = torch.zeros(spec.offset + extent, dtype=getattr(torch, spec.dtype), device=device)
    return base.as_strided(spec.shape, spec.stride, spec.offset)


def _on_its_device(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with the inputs' device as the current one: launches go to the current device's stream."""
    current = torch.cuda.current_device

    def call(*inputs: Tensor) -> Any:
        device = inputs[0].device
        if device.index == current():
            return run(*inputs)
        with torch.cuda.device(device):
            return run(*inputs)

    return call


def _allocator(spec: TensorSpec) -> Callable[[torch.device], Tensor]:
    shape, stride, dtype = spec.shape, spec.stride, getattr(torch, spec.dtype)
    return lambda device: torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _fake(task: Task) -> Callable[..., Any]:
    specs = [(spec.shape, spec.stride, getattr(torch, spec.dtype)) for spec in task.outputs]

    def fake(*inputs: Tensor) -> Any:
        device = inputs[0].device
        made = tuple(torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype in specs)
        return made if len(made) > 1 else made[0]

    return fake


def _implementation(
    task: Task, launch: Callable[..., None], original: fx.GraphModule, entry: Operator
) -> Callable[..., Any]:
    """What the dispatcher calls. The hot path has no counter, no lock and no tree of arguments."""
    allocators = tuple(_allocator(spec) for spec in task.outputs)
    guards = tuple((spec.stride, _mask(spec), _effective(spec.shape, spec.stride)) for spec in task.inputs)

    def fits(inputs: tuple[Tensor, ...]) -> bool:
        for tensor, (stride, mask, effective) in zip(inputs, guards, strict=True):
            if tensor.data_ptr() & mask:
                return False
            if tensor.stride() != stride and _effective(tensor.shape, tensor.stride()) != effective:
                return False
        return True

    def missed(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with _lock:
            entry.misses += 1
        device = inputs[0].device
        outputs = tuple(allocate(device) for allocate in allocators)
        for output, value in zip(outputs, original(*inputs), strict=True):
            output.copy_(value)  # a copy: the region may return views of its inputs, an operator may not
        return outputs

    def run(*inputs: Tensor) -> Any:
        if not fits(inputs):
            outputs = missed(inputs)
        else:
            device = inputs[0].device
            outputs = tuple([allocate(device) for allocate in allocators])
            launch(*inputs, *outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    return run


def _mask(spec: TensorSpec) -> int:
    """Bits of the address that must be zero; none when the model's own tensor was not aligned to begin with."""
    width: int = getattr(torch, spec.dtype).itemsize
    return 0 if (spec.offset * width) % _ALIGNMENT else _ALIGNMENT - 1
