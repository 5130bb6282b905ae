"""A KernelBench file as a task: `Model` with its weights, `get_inputs()`, `get_init_inputs()`.

The inputs of the task (and of `launch`) are, in order: the tensors among forward's arguments, the module's
`named_parameters`, its `named_buffers`. Arguments that are no tensors are constants of the task.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autokernel.errors import TargetInvalid
from autokernel.graph.count import count
from autokernel.graph.facts import lowered_kind
from autokernel.graph.fingerprint import fingerprint
from autokernel.graph.lower import lower
from autokernel.graph.naming import identifier, plain_role, unique
from autokernel.records import Role, Site, Task
from autokernel.task import LoadedTask
from autokernel.task.dims import discover
from autokernel.task.observe import describe
from autokernel.task.source import quiet_tracing
from autokernel.task.specs import index_bound, tensor_spec
from autokernel.workload.failures import user_code
from autokernel.workload.target import load_target


def from_file(path: Path, device: str = "cpu") -> LoadedTask:
    """A KernelBench file as a task for "cpu" or "cuda:N". Raises what `workload.load` raises, and CaptureFailed."""
    workload = load_target(str(path), device=device)
    model, case = workload.model, workload.cases[0]
    if not isinstance(model, nn.Module) or case.kwargs:
        raise TargetInvalid(target=path, detail="`get_inputs()` must return a list of positional arguments")
    given = list(case.args)
    names, values, roles = _inputs(model, given)
    count_given = sum(isinstance(value, Tensor) for value in given)
    weights = [*dict(model.named_parameters()), *dict(model.named_buffers())]

    def reference(*inputs: Tensor) -> tuple[Any, ...]:
        tensors = iter(inputs[:count_given])
        args = [next(tensors) if isinstance(value, Tensor) else value for value in given]
        with torch.no_grad():
            state = dict(zip(weights, inputs[count_given:], strict=True))
            out = torch.func.functional_call(model, state, tuple(args))
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    with user_code(str(path), "being traced", workload.path):
        lowered = lower(reference, values, names=names)
    task = _task(path, lowered, names, values, roles)
    loaded = LoadedTask(task=task, reference=reference, module=lowered, path=Path(path))
    with quiet_tracing():
        task = discover(loaded)
    return LoadedTask(task=task, reference=reference, module=lowered, path=Path(path))


def _inputs(model: nn.Module, given: Sequence[Any]) -> tuple[list[str], list[Tensor], list[Role]]:
    arguments = list(inspect.signature(model.forward).parameters)
    taken: set[str] = set()
    names, values, roles = [], [], []
    for position, value in enumerate(given):
        if isinstance(value, Tensor):
            name = arguments[position] if position < len(arguments) else f"x{position}"
            names.append(unique(identifier(name), taken))
            values.append(value)
            roles.append(plain_role(value))
    for role, members in ((Role.parameter, model.named_parameters()), (Role.buffer, model.named_buffers())):
        for path, tensor in members:
            names.append(unique(identifier(path), taken))
            values.append(tensor.detach())
            roles.append(role)
    return names, values, roles


def _task(path: Path, lowered: Any, names: Sequence[str], values: Sequence[Tensor], roles: Sequence[Role]) -> Task:
    identity, sizes = fingerprint(lowered)
    flops, size = count(lowered)
    inputs = []
    for name, value, role, node in zip(names, values, roles, lowered.graph.find_nodes(op="placeholder"), strict=True):
        seen = describe(value, role)
        high = index_bound(node) if seen.domain == "index" else None
        if seen.domain == "index" and high is None and seen.statistics.maximum is not None:
            high = int(seen.statistics.maximum) + 1
        role = Role.mask if seen.mask else role
        inputs.append(tensor_spec(name, value, role=role, domain=seen.domain, high=high, statistics=seen.statistics))
    taken = set(names)
    outputs = [
        tensor_spec(unique("out", taken), node.meta["val"], role=plain_role(node.meta["val"]))
        for node in lowered.graph.output_node().args[0]
    ]
    return Task(
        id=Path(path).stem,
        title=Path(path).stem.replace("_", " "),
        fingerprint=identity,
        shape_key=sizes,
        sites=(Site(graph=0, nodes=(), lines=()),),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        device_class=outputs_device(lowered),
        flops=flops,
        min_bytes=size,
        kind=lowered_kind(lowered),
    )


def outputs_device(lowered: Any) -> str:
    return str(lowered.graph.output_node().args[0][0].meta["val"].device.type)
