"""The complete kernel.py around the Triton text."""

from __future__ import annotations

from autokernel.generate.buffer import Buffer
from autokernel.generate.emit_triton import Launch, emit
from autokernel.generate.expression import Checked
from autokernel.generate.kernel_file import documentation, parameters, serves
from autokernel.generate.plan import Plan
from autokernel.generate.schedule_triton import TritonSchedule
from autokernel.records import Task

_ARRANGED = '''def arranged(tensor, stride):
    """`tensor` itself if its elements lie as `stride` says (extents of 1 don't matter), else a copy that does."""
    for extent, found, wanted in zip(tensor.shape, tensor.stride(), stride):
        if extent > 1 and found != wanted:
            return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
    return tensor'''
_PROGRAMS = '''def programs(tensor, tiles, each):
    """`each` programs for every multiprocessor of the tensor's GPU, but no more than there are tiles."""
    if tensor.device.type != "cuda":
        return tiles
    return min(tiles, each * torch.cuda.get_device_properties(tensor.device).multi_processor_count)'''
_CLAMPED = "An index outside its tensor is taken for the nearest one inside: no other memory is read, no error raised."


def kernel_file(task: Task, plan: Plan, schedule: TritonSchedule) -> str:
    """The text of a kernel.py for a task: documentation, the Triton kernels, and `launch`. Raises `NotGenerated`."""
    text = emit(plan, schedule, task.title)
    checks = any(isinstance(expr, Checked) for nest in plan.nests for expr in nest.expressions())
    imports = "import torch\nimport triton\nimport triton.language as tl"
    if any("libdevice." in kernel for kernel in text.kernels):
        imports += "\nfrom triton.language.extra import libdevice"
    top = [documentation(task, plan, schedule, _CLAMPED if checks else ""), imports]
    top.append('LANGUAGE = "triton"' + serves(task))
    launch = _launch(plan, text.launches, schedule)
    helpers = [_ARRANGED] if "arranged(" in launch else []
    helpers += [_PROGRAMS] if "programs(" in launch else []
    return "\n\n".join(top) + "\n\n\n" + "\n\n\n".join([*text.functions, *text.kernels, *helpers, launch]) + "\n"


def _launch(plan: Plan, launches: tuple[Launch, ...], schedule: TritonSchedule) -> str:
    buffers = (*plan.inputs, *plan.outputs)
    taken = {*(entry.kernel for entry in launches), "triton", "tl", "libdevice", "programs"}
    names = dict(zip((buffer.name for buffer in buffers), parameters(plan, taken), strict=True))
    lines = [f"def launch({', '.join(names.values())}):"]
    for buffer in plan.inputs:
        if buffer.shape:
            name = names[buffer.name]
            lines.append(f"    {name} = arranged({name}, {buffer.stride!r})")
    first = names[buffers[0].name]
    for buffer in plan.workspaces:
        names[buffer.name] = _unused(buffer.name, names)
        lines.append(f"    {names[buffer.name]} = {_empty(buffer, first)}")
    for entry in launches:
        grid = f"({entry.tiles},)"
        if schedule.persistent and entry.tiles > 1:
            grid = f"(programs({first}, {entry.tiles}, {schedule.persistent}),)"
        tensors = ", ".join(names[tensor] for tensor in entry.tensors)
        lines.append(f"    {entry.kernel}[{grid}]({tensors}, num_warps={schedule.warps})")
    return "\n".join(lines)


def _unused(name: str, names: dict[str, str]) -> str:
    while name in names.values():
        name += "_"
    return name


def _empty(buffer: Buffer, like: str) -> str:
    return f"torch.empty({buffer.shape!r}, dtype=torch.{buffer.dtype}, device={like}.device)"
