"""Task folders: task.json and reference.py, written from regions and read back; KernelBench files as tasks.

A written task is read back before it counts: its reference, traced and lowered, must have the region's fingerprint and
shape key. Where a pretty spelling fails that, the reference is printed operator by operator; a region whose reference
can't be made to agree is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from autokernel.errors import BrokenFile, NotComputable
from autokernel.graph import Capture, Region
from autokernel.graph.fingerprint import fingerprint
from autokernel.graph.lower import lower
from autokernel.graph.printer import print_reference
from autokernel.records import Site, Task
from autokernel.task import LoadedTask
from autokernel.task.dims import discover
from autokernel.task.file import from_file
from autokernel.task.observe import Observed, observe
from autokernel.task.source import module_from_file, module_from_text, quiet_tracing
from autokernel.task.specs import input_spec, output_specs

__all__ = ["Observed", "from_file", "group", "load", "observe", "slug", "write"]


def group(capture: Capture) -> tuple[tuple[Region, ...], ...]:
    """Regions of equal fingerprint and shape key, in the order in which the first of each is met."""
    found: dict[tuple[str, str], list[Region]] = {}
    for graph in capture.graphs:
        for region in graph.regions:
            found.setdefault((region.fingerprint, region.shape_key), []).append(region)
    return tuple(tuple(regions) for regions in found.values())


def slug(number: int, title: str) -> str:
    """ "03-add-rms-norm"."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].strip("-")
    return f"{number:02d}-{words or 'region'}"


# --- writing ----------------------------------------------------------------------------------------------------------


def write(
    directory: Path, number: int, regions: Sequence[Region], statistics: Mapping[fx.Node, Observed] | None = None
) -> Task:
    """Make `directory/NN-slug` with task.json and reference.py for one group of equal regions, named by the first.

    `statistics`: what `observe` saw of the regions' inputs. Raises NotComputable when no reference can be printed that
    traces back to the region; nothing is written then.
    """
    region = regions[0]
    task, text = _referenced(_task(slug(number, region.title), regions, statistics or {}), region)
    folder = directory / task.id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.py").write_text(text, encoding="utf-8")
    (folder / "task.json").write_text(task.dump(), encoding="utf-8")
    return task


def _task(name: str, regions: Sequence[Region], statistics: Mapping[fx.Node, Observed]) -> Task:
    region = regions[0]
    placeholders = region.module.graph.find_nodes(op="placeholder")
    inputs = tuple(
        input_spec(placeholder, statistics.get(node))
        for placeholder, node in zip(placeholders, region.inputs, strict=True)
    )
    return Task(
        id=name,
        title=region.title,
        fingerprint=region.fingerprint,
        shape_key=region.shape_key,
        device_class=region.outputs[0].meta["val"].device.type,
        occurrences=len(regions),
        sites=tuple(
            Site(graph=one.graph, nodes=tuple(node.name for node in one.nodes), lines=one.lines) for one in regions
        ),
        inputs=inputs,
        outputs=output_specs(region.outputs, {spec.name for spec in inputs}),
        rng=any(_random(node) for node in region.nodes),
        flops=region.flops,
        min_bytes=region.min_bytes,
        kind=region.kind,
    )


def _random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _referenced(task: Task, region: Region) -> tuple[Task, str]:
    """The task with its free dims, and a reference that traces back to the region."""
    extents = {size for spec in task.inputs for size in spec.shape if size > 1}
    reasons: list[str] = []

    def attempt(free: Collection[int], plain: bool) -> tuple[Task, str] | None:
        text = print_reference(region.module, task.inputs, task.title, lines=region.lines, free=free, plain=plain)
        loaded = _agreeing(task, text, reasons)
        if loaded is None:
            return None
        with quiet_tracing():
            return discover(loaded), text

    general = attempt(extents, plain=False)
    if general is not None:
        # sizes written by name only where they may really change: the rest reads better as numbers
        moving = {dim.value for dim in general[0].dims.values() if dim.free}
        return attempt(moving, plain=False) or general
    for free, plain in (((), False), ((), True)):
        found = attempt(free, plain)
        if found is not None:
            return found
    raise NotComputable(task=task.title, detail=f"its reference does not trace back to it ({'; '.join(reasons)})")


def _agreeing(task: Task, text: str, reasons: list[str]) -> LoadedTask | None:
    try:
        loaded = _loaded(task, module_from_text(text, task.id), None)
    except Exception as error:  # a printed text that does not run: the plainer form is tried, and the reason kept
        reasons.append(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")
        return None
    if fingerprint(loaded.module) != (task.fingerprint, task.shape_key):
        reasons.append("another fingerprint")
        return None
    return loaded


# --- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> LoadedTask:
    """Read a task folder. Raises NewerSchema; BrokenFile, also when reference.py is no longer what task.json says."""
    path = Path(path)
    task = Task.load(path / "task.json")
    source = path / "reference.py"
    module = module_from_file(source)
    try:
        loaded = _loaded(task, module, path)
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        raise BrokenFile(path=source, detail=f"{type(error).__name__}: {str(error).split(chr(10))[0]}") from error
    if fingerprint(loaded.module) != (task.fingerprint, task.shape_key):
        raise BrokenFile(path=source, detail="it computes something else than task.json says")
    return loaded


def _loaded(task: Task, module: ModuleType, path: Path | None) -> LoadedTask:
    model = module.Model(*module.get_init_inputs())
    model.eval()

    def reference(*inputs: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            out = model(*inputs)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    lowered = lower(reference, _fakes(task), names=[spec.name for spec in task.inputs])
    return LoadedTask(task=task, reference=reference, module=lowered, path=path)


def _fakes(task: Task) -> list[Tensor]:
    with FakeTensorMode():
        return [
            torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device=task.device_class)
            for spec in task.inputs
        ]
