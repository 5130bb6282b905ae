"""A task folder on disk (task.json, reference.py, kernel.py), and the inputs drawn from its description.

folder.py   write(region_group, directory) ; load(path) -> LoadedTask
inputs.py   draw(task, seed, variant) -> list of tensors
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autokernel.records import Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import fx


@dataclass(frozen=True)
class LoadedTask:
    """A task ready to be generated for or judged.

    `reference` is called as `reference(*inputs)` with every input of `task.inputs` in order (parameters and buffers
    included) and returns a tuple of tensors in the order of `task.outputs`. `module` is the lowered graph of the same
    function (see graph/lower.py), with `meta["val"]` on every node and placeholders named as `task.inputs`.
    """

    task: Task
    reference: Callable[..., tuple[Any, ...]]
    module: fx.GraphModule
    path: Path | None  # the task's folder, or the KernelBench file it came from
