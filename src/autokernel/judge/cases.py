"""What a kernel is asked to compute in the stages: inputs of one size, layout and variant, and what must come out.

Expected values are made afresh for every case from a secret seed, and stay in this process. Only the oracle's graphs
are kept, one for each size: they hold no values.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autokernel.judge.oracle import Expected, Oracle
from autokernel.judge.seeds import Seeds
from autokernel.judge.tolerance import compare
from autokernel.records import Role, Task
from autokernel.task import LoadedTask
from autokernel.task.dims import at
from autokernel.task.inputs import draw

Sizes = Mapping[str, int]

# what parsing a text, and evaluating a literal in it, may raise: a dict in a set, nesting too deep, a null byte
UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
_GRAPHS = 24  # oracles kept


@dataclass(frozen=True)
class Case:
    name: str  # what explanations call it: "large", "s0=17"
    task: Task  # with the shapes of this case
    inputs: list[Tensor]
    expected: tuple[Expected, ...]
    seed: int
    variant: str


class Cases:
    """Makes the cases of one task. One for a task and a run; verdicts share it."""

    def __init__(self, loaded: LoadedTask, seeds: Seeds) -> None:
        self.loaded = loaded
        self.task = loaded.task
        self.seeds = seeds
        self._drawn = 0
        self._oracles: dict[tuple[tuple[str, int], ...], Oracle] = {}
        self._precision: str | None = None

    def make(self, name: str, variant: str = "model", sizes: Sizes | None = None) -> Case:
        """A case with values never used before. Raises `NotComputable`."""
        task = at(self.task, sizes) if sizes else self.task
        seed = self.seed("inputs")
        inputs = draw(task, seed, variant)
        return Case(name, task, inputs, self._expect(task, inputs, sizes), seed, variant)

    def relaid(self, case: Case, variant: str) -> Case:
        """The same values in another layout: the same expected values, without another oracle."""
        inputs = draw(case.task, case.seed, variant)
        return Case(variant, case.task, inputs, case.expected, case.seed, variant)

    def changed(self, case: Case) -> Case:
        """The same case with a few elements of its activations different, and all of its indices and masks: what caches
        keyed by a glance, or by an address, miss."""
        inputs, fresh = draw(case.task, case.seed, case.variant), draw(case.task, self.seed("inputs"))
        for spec, mine, new in zip(case.task.inputs, inputs, fresh, strict=True):
            if spec.role == Role.activation and mine.numel() and 0 not in spec.stride and mine.dim():
                start = mine.shape[-1] // 3
                places = slice(start, start + max(mine.shape[-1] // 16, 1))
                mine[..., places] = new[..., places]
            elif spec.role in (Role.index, Role.mask) and mine.numel() and 0 not in spec.stride:
                mine.copy_(new)
        return Case(f"{case.name}, changed", case.task, inputs, self._expect(case.task, inputs, None), case.seed, "")

    def _expect(self, task: Task, inputs: list[Tensor], sizes: Sizes | None) -> tuple[Expected, ...]:
        return self.oracle(task, inputs, sizes).expect(inputs, self.seed("noise"))

    def oracle(self, task: Task, inputs: list[Tensor], sizes: Sizes | None) -> Oracle:
        key = tuple(sorted((sizes or {}).items()))
        if key not in self._oracles:
            if len(self._oracles) >= _GRAPHS:  # hidden sizes are new each time; the task's own comes first and stays
                del self._oracles[list(self._oracles)[1]]
            self._oracles[key] = Oracle(task, self.loaded.reference, inputs)
        return self._oracles[key]

    def precision_note(self, case: Case) -> str | None:
        """A warning when the task can't tell its own precision from the next lower one; worked out once."""
        if self._precision is None:
            low = self.oracle(case.task, case.inputs, None).one_step_lower(case.inputs)
            passes = low is not None and all(
                compare(spec.name, value, expected).reason is None
                for spec, value, expected in zip(case.task.outputs, low, case.expected, strict=True)
            )
            self._precision = "one step lower precision passes this task's tolerance" if passes else ""
        return self._precision or None

    def seed(self, purpose: str) -> int:
        self._drawn += 1
        return self.seeds.seed(f"{self.task.id} {purpose}", self._drawn)


_MOST_SIZE = 1 << 63


def serves(source: str, task: Task) -> dict[str, tuple[int, int | None]] | str:
    """The sizes of each free dim that a kernel file says it serves, or why its `SERVES` can't be accepted.

    `SERVES` is a module-level literal: "task" (the task's own shapes only), or a dict from dim to a size or to
    (smallest, largest), `None` for no bound. Dims it doesn't name are served as far as the task's dims go.
    """
    found: dict[str, tuple[int, int | None]] = {
        name: (dim.min or 0, dim.max) for name, dim in task.dims.items() if dim.free
    }
    declared = _literal(source, "SERVES")
    if declared is None:
        return found
    if declared == "task":
        return {name: (task.dims[name].value, task.dims[name].value) for name in found}
    if not isinstance(declared, dict):
        return "SERVES is neither 'task' nor a dict of sizes"
    for name, bounds in declared.items():
        low, high = bounds if isinstance(bounds, (tuple, list)) and len(bounds) == 2 else (bounds, bounds)
        if any(isinstance(size, int) and abs(size) >= _MOST_SIZE for size in (low, high)):
            return f"SERVES[{str(name)[:40]!r}] has a number that no size can be"
        if name not in task.dims or not isinstance(low, int) or not isinstance(high, (int, type(None))):
            return f"SERVES[{name!r}] = {bounds!r} is no size of a dim; the task's dims are {', '.join(task.dims)}"
        value = task.dims[name].value
        if value < low or (high is not None and value > high):
            return f"SERVES[{name!r}] = {bounds!r} leaves out the task's own {name} = {value}"
        if name in found:
            limit = task.dims[name].max
            bound = high if limit is None else limit if high is None else min(high, limit)
            found[name] = (max(low, found[name][0]), bound)
    return found


def _literal(source: str, name: str) -> Any:
    try:
        body = ast.parse(source).body
    except UNREADABLE:
        return None
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                return ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            except UNREADABLE:
                return "not a literal"
    return None
