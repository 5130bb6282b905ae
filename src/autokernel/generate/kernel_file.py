"""The complete kernel.py around the C++ text."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from autokernel.generate.emit_cpp import emit
from autokernel.generate.expression import Checked
from autokernel.generate.plan import Plan
from autokernel.generate.schedule import Schedule
from autokernel.records import Task

_BUILTIN = frozenset({"launch", "torch", "ctypes", "load", "arranged", "kernel", "LANGUAGE", "SERVES", "SOURCE"})


def kernel_file(task: Task, plan: Plan, schedule: Schedule) -> str:
    """The text of a kernel.py for a task: documentation, the C++ source, and `launch`."""
    source = emit(plan, schedule)
    assert '"""' not in source
    parts = [
        documentation(task, plan, schedule),
        "import ctypes\n\nimport torch\nfrom autokernel_loader import arranged, load",
        'LANGUAGE = "cpp"' + serves(task),
        f'SOURCE = r"""\n{source}"""',
        _binding(plan),
        _launch(plan),
    ]
    return "\n\n".join(parts[:-1]) + "\n\n\n" + parts[-1] + "\n"


def documentation(task: Task, plan: Plan, schedule: object, note: str = "") -> str:
    """The docstring of a kernel file: what it computes, its tensors, its schedule."""
    lines = [f'"""{_plain(task.title)}', ""]
    user = [line for site in task.sites[:1] for line in site.lines]
    if user:
        lines += ["Computes", "", *(f"    {_plain(line)}" for line in user), ""]
    width = max(len(b.name) for b in (*plan.inputs, *plan.outputs))
    for word, buffers in (("reads", plan.inputs), ("writes", plan.outputs)):
        for buffer in buffers:
            shape = "×".join(map(str, buffer.shape)) or "scalar"
            lines.append(f"    {word:6} {buffer.name:{width}}  {shape} {buffer.dtype}")
    lines += ["", note] if note else []
    lines += ["", f"Schedule: {schedule}", '"""']
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")


def serves(task: Task) -> str:
    """The line that says which free extents are baked in; empty where none is."""
    fixed = {name: dim.value for name, dim in sorted(task.dims.items()) if dim.free}
    return f"\nSERVES = {fixed!r}  # extents are baked in".replace("'", '"') if fixed else ""


def _binding(plan: Plan) -> str:
    count = len(plan.inputs) + len(plan.outputs)
    return f"kernel = load(SOURCE).launch\nkernel.argtypes = [ctypes.c_void_p] * {count} + [ctypes.c_int]"


def _launch(plan: Plan) -> str:
    names = parameters(plan)
    lines = [f"def launch({', '.join(names)}):"]
    for name, buffer in zip(names, plan.inputs, strict=False):
        if buffer.shape:
            lines += [
                f"    if {name}.stride() != {buffer.stride!r}:",
                f"        {name} = arranged({name}, {buffer.stride!r})",
            ]
    arguments = [f"{name}.data_ptr()" for name in names] + ["torch.get_num_threads()"]
    call = f"kernel({', '.join(arguments)})"
    if len(call) > 100:
        call = "kernel(\n        " + ",\n        ".join(arguments) + ",\n    )"
    if any(_checks(plan)):
        lines += [f"    if {call}:", '        raise IndexError("an index lies outside its tensor")']
    else:
        lines.append(f"    {call}")
    return "\n".join(lines)


def _checks(plan: Plan) -> list[bool]:
    return [isinstance(expr, Checked) for nest in plan.nests for expr in nest.expressions()]


def parameters(plan: Plan, taken: Iterable[str] = ()) -> list[str]:
    """Parameter names: the task's own where Python and `taken` allow them."""
    reserved = _BUILTIN | set(taken)
    names: list[str] = []
    for buffer in (*plan.inputs, *plan.outputs):
        name = buffer.name if buffer.name.isidentifier() and not keyword.iskeyword(buffer.name) else "value"
        while name in names or name in reserved:
            name += "_"
        names.append(name)
    return names
