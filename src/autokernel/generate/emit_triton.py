"""A plan as Triton: a kernel function for each nest, and how each is launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autokernel.generate.mathlib_triton import functions_for
from autokernel.generate.nest_triton import NestWriter
from autokernel.generate.plan import Plan
from autokernel.generate.schedule_triton import TritonSchedule
from autokernel.generate.text_triton import Names

_WIDTH = 118


@dataclass(frozen=True)
class Launch:
    kernel: str
    tensors: tuple[str, ...]  # buffers in the order of the kernel's parameters
    tiles: int
    options: str


@dataclass(frozen=True)
class Text:
    functions: tuple[str, ...]
    kernels: tuple[str, ...]
    launches: tuple[Launch, ...]

    def code(self) -> str:
        """All that tells one schedule from another."""
        return "\n".join([*self.kernels, *(f"{entry.kernel} {entry.options}" for entry in self.launches)])


def emit(plan: Plan, schedule: TritonSchedule, title: str = "") -> Text:
    """The Triton text for a plan. Pure: equal arguments give equal bytes. Raises `NotGenerated`."""
    buffers = (*plan.inputs, *plan.outputs, *plan.workspaces)
    dtypes = {buffer.name: buffer.dtype for buffer in buffers}
    base = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    base = base if base and not base[0].isdigit() else f"fused_{base}".rstrip("_")
    kernels, launches = [], []
    for number, nest in enumerate(plan.nests):
        names = Names()
        name = names.fresh(f"{base}_kernel" if len(plan.nests) == 1 else f"{base}_kernel_{number + 1}")
        pointers = {buffer.name: names.fresh(f"{buffer.name}_ptr") for buffer in buffers}
        writer = NestWriter(nest, schedule, pointers, dtypes, names)
        body = writer.write()
        used = set(re.findall(r"\w+", "\n".join(body)))
        taken = tuple(buffer.name for buffer in buffers if pointers[buffer.name] in used)
        head = f"def {name}({', '.join(pointers[t] for t in taken)}):"
        if len(head) > _WIDTH:
            head = f"def {name}(\n    " + ",\n    ".join(pointers[t] for t in taken) + ",\n):"
        kernels.append("\n".join(["@triton.jit", head, *("    " + line for line in body)]))
        persistent = schedule.persistent if writer.grid.tiles > 1 else 0
        options = f"num_warps={schedule.warps}" + (f" persistent={persistent}" if persistent else "")
        launches.append(Launch(name, taken, writer.grid.tiles, options))
    return Text(tuple(functions_for("\n".join(kernels))), tuple(kernels), tuple(launches))
