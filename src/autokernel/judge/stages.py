"""The five correctness stages: smoke, shapes, stability, determinism, edges. Each runs in a fresh child.

Every call is checked the same way: outputs poisoned before, a second call before an element counts as unwritten; then
canaries, inputs, values against the oracle. The first failure ends the judging with the stage, a reason and a sentence.

Sizes. Stability runs at the task's own size. Above 2¹⁶ elements only "large", "nan", "inf" and "assorted" (every finite
variant, row by row) do; the rest run at a smaller size, if the task has free dims that the kernel serves.
Empty tensors (a dim of size 0) must be served, or refused by raising.

Layouts. An installed kernel is guarded on its task's exact strides and alignment. A changed storage offset lies inside
these guards and must be right. Other strides and a misaligned base lie outside: there a kernel may refuse by raising;
if it is wrong without a word, the verdict carries a warning.
"""

from __future__ import annotations

import ast
import io
import math
import re
import time
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autokernel.judge.cases import Case, Cases, Sizes
from autokernel.judge.children import AnySet, ChildFailure, Kernel
from autokernel.judge.oracle import one_thread
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.sets import create_set
from autokernel.judge.tolerance import Comparison, compare
from autokernel.records import Reason, Stage, StageResult, Task
from autokernel.task.inputs import STABILITY, edge_specs

if TYPE_CHECKING:
    from autokernel.judge.children import Child

LARGE_ELEMENTS = 1 << 16
AT_FULL_SIZE = ("large", "nan", "inf", "assorted")
LATE_SECONDS = 0.03
_GUARDED_ELEMENTS = 1 << 18
LEAST_REPEATED_CALLS, REPEATED_CALLS, REPEATED_SECONDS = 8, 256, 0.05
Masks = list[Tensor]  # for each output, which elements
# operators that make, fill or move memory, or read a number, and compute nothing; most views are not listed at all
MOVING = {
    *(
        f"aten.{name}"
        for name in ("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros")
    ),
    *(f"aten.{name}" for name in ("ones", "ones_like", "full", "full_like", "new_full", "fill_", "zero_", "set_")),
    *(f"aten.{name}" for name in ("copy_", "clone", "_to_copy", "contiguous", "resize_", "detach", "lift_fresh")),
    *(f"aten.{name}" for name in ("_unsafe_view", "new_ones", "empty_permuted", "new_empty_strided", "arange")),
    *(
        f"aten.{name}"
        for name in ("_local_scalar_dense", "item", "cat", "flip", "constant_pad_nd", "roll", "index_select")
    ),
}
STAGES = (Stage.smoke, Stage.shapes, Stage.stability, Stage.determinism, Stage.edges)


class Failed(Exception):
    """A stage's verdict on the candidate; not an error of ours."""

    def __init__(self, reason: Reason, explanation: str, *, loading: bool = False) -> None:
        super().__init__(explanation)
        self.reason, self.explanation, self.loading = reason, explanation, loading


@dataclass
class Stages:
    """The stages of one verdict. `bounds`: the sizes of each free dim that the kernel serves (cases.serves)."""

    cases: Cases
    sandbox: Sandbox
    kernel: Kernel
    bounds: dict[str, tuple[int, int | None]]
    deadline: float
    comparisons: list[Comparison] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    peak_memory: int = 0
    launched: tuple[str, ...] = ()  # what one call ran, as the child tells
    _kept: Case | None = None  # values and expected values that another child has met

    def run(self, stage: Stage) -> StageResult:
        """Run one stage. Raises `Failed`; `NotComputable` and `SandboxDied` are not the candidate's doing."""
        begin = time.monotonic()
        work: dict[Stage, Callable[[], str]] = {
            Stage.smoke: self._smoke,
            Stage.shapes: self._shapes,
            Stage.stability: self._stability,
            Stage.determinism: self._determinism,
            Stage.edges: self._edges,
        }
        try:
            with one_thread():
                detail = work[stage]()
        except ChildFailure as failure:
            raise Failed(failure.reason, failure.detail) from failure
        return StageResult(name=stage, status="passed", seconds=time.monotonic() - begin, detail=detail)

    # --- the stages -----------------------------------------------------------------------------------------------

    def _smoke(self) -> str:
        """Two sets of values at the task's own shapes; then a moment for threads that were left behind."""
        cases = [self.cases.make("first values"), self.cases.make("second values")]
        child, sets = self._spawn(cases)
        try:
            self._check_all(child, sets, cases)
            if child.late_writes(LATE_SECONDS):
                raise Failed(Reason.late_write, "outputs changed after launch had returned, without a call")
        finally:
            self.peak_memory = max(self.peak_memory, child.peak_memory())
            child.close()
        self._kept = cases[1]
        note = self.cases.precision_note(cases[0])
        if note:
            self.warnings.append(note)
        return "2 calls with different values"

    def _shapes(self) -> str:
        sizes = sweep(self.cases.task, self.bounds, self.cases.seed("sizes"))
        if not sizes:
            return "no other shape is served"
        empty = [one for one in sizes if 0 in one.values()]
        full = [self.cases.make(_sizes(one), sizes=one) for one in sizes if one not in empty]
        if full:
            self._check_cases(full)
        words = [_sizes(one) for one in sizes if one not in empty]
        for one in empty:
            words.append(_sizes(one) + self._right_or_refused(self.cases.make(_sizes(one), sizes=one)))
        return "; ".join(words)

    def _stability(self) -> str:
        if elements(self.cases.task) <= LARGE_ELEMENTS:
            self._check_cases([self.cases.make(variant, variant) for variant in STABILITY])
            return ", ".join(STABILITY)
        self._check_cases([self.cases.make(variant, variant) for variant in AT_FULL_SIZE])
        words = ", ".join(AT_FULL_SIZE)
        smaller = self._smaller()
        if smaller is not None:
            rest = [variant for variant in STABILITY if variant not in AT_FULL_SIZE]
            self._check_cases([self.cases.make(variant, variant, smaller) for variant in rest])
            words += f"; at {_sizes(smaller)}: {', '.join(rest)}"
        return words

    def _determinism(self) -> str:
        """Three runs bitwise; a few elements changed in place of the same buffers; many calls, and once more."""
        case = self._kept or self.cases.make("determinism")
        child, sets = self._spawn([case])
        try:
            first = self._check(child, sets[0], 0, case, [])
            seconds = math.inf
            for _ in range(2):
                sets[0].poison(0)
                begin = time.monotonic()
                child.call(0, self.deadline)
                seconds = min(seconds, time.monotonic() - begin)
                self._undamaged(sets[0], case)
                again = self._outputs(sets[0])
                if not all(_bits_equal(one, now) for one, now in zip(first, again, strict=True)):
                    self._values(again, case, [], True)
                    self._same(first, again, case)
            changed = self.cases.changed(case)
            sets[0].rewrite(changed.inputs)
            self._check(child, sets[0], 0, changed, [case])
            calls = max(LEAST_REPEATED_CALLS, min(REPEATED_CALLS, int(REPEATED_SECONDS / max(seconds, 1e-6))))
            sets[0].poison(0)
            child.loop(calls, self.deadline)
            after = Case(f"after {calls} more calls", changed.task, changed.inputs, changed.expected, 0, "")
            self._check(child, sets[0], 0, after, [case])
            self._list(child)
        finally:
            child.close()
        return f"3 runs, changed values, {calls} more calls"

    def _list(self, child: Child) -> None:
        """What one call runs; a finding only where the task does not leave the work to the library."""
        self.launched = child.listed(0, self.deadline)
        calls = [name for name in self.launched if name.startswith("aten.") and name not in MOVING]
        if calls and not self.cases.task.allow.library_calls:
            text = (
                f"launch calls {', '.join(calls)}, and the task allows no library calls (allow.library_calls = false)"
            )
            raise Failed(Reason.library_call, text)

    def _edges(self) -> str:
        inside = self.cases.make("offset", "offset")
        self._check_cases([inside])
        words = ["offset"]
        smaller = self._smaller()
        if smaller is not None:
            inside = self.cases.make("offset", "offset", smaller)
        elif elements(self.cases.task) > _GUARDED_ELEMENTS:
            return "offset (the task is large: layouts that guards keep away were not tried)"
        for variant in ("misaligned", "noncontiguous", "expanded"):
            if edge_specs(inside.task, variant) == inside.task.inputs:
                continue
            case = (
                self.cases.make(variant, variant, smaller)
                if variant == "expanded"
                else self.cases.relaid(inside, variant)
            )
            try:
                words.append(variant + self._right_or_refused(case))
            except (Failed, ChildFailure) as failure:
                self._outside(variant, failure.reason)
        return ", ".join(words)

    def _smaller(self) -> Sizes | None:
        large = elements(self.cases.task) > LARGE_ELEMENTS
        return reduced(self.cases.task, self.bounds, LARGE_ELEMENTS // 4) if large else None

    def _right_or_refused(self, case: Case) -> str:
        """For inputs that a kernel may decline by raising, in its launch; wrong without a word is a failure."""
        try:
            self._check_cases([case], keep=False)
        except ChildFailure as failure:
            if failure.reason is not Reason.exception:
                raise
            return " refused"
        return ""

    def _outside(self, variant: str, reason: Reason) -> None:
        self.warnings.append(f"{variant} inputs, which the guards keep away, give {reason.replace('_', ' ')}")

    # --- one call ---------------------------------------------------------------------------------------------------

    def _check_cases(self, cases: Sequence[Case], keep: bool = True) -> None:
        child, sets = self._spawn(cases)
        try:
            self._check_all(child, sets, cases, keep)
        finally:
            child.close()

    def _spawn(self, cases: Sequence[Case]) -> tuple[Child, list[AnySet]]:
        device = self.cases.task.device_class
        transport = self.sandbox.transport
        sets = [create_set(case.inputs, case.task.outputs, device, transport) for case in cases]
        try:
            return self.sandbox.spawn(self.kernel, sets, deadline=self.deadline), sets
        except ChildFailure as failure:
            raise Failed(failure.reason, failure.detail, loading=True) from failure

    def _check_all(self, child: Child, sets: list[AnySet], cases: Sequence[Case], keep: bool = True) -> None:
        for index, case in enumerate(cases):
            self._check(child, sets[index], index, case, cases[:index], keep)

    def _check(
        self, child: Child, buffers: AnySet, index: int, case: Case, earlier: Sequence[Case], keep: bool = True
    ) -> list[Tensor]:
        """One call on one set, checked whole; the outputs, copied. Raises `Failed`, `ChildFailure`."""
        buffers.poison(0)
        child.call(index, self.deadline)
        self._undamaged(buffers, case)
        unwritten = buffers.unwritten()
        if any(bool(mask.any()) for mask in unwritten):
            self._written(child, buffers, index, case, (unwritten, buffers.holding(1)))
        outputs = self._outputs(buffers)
        self._values(outputs, case, earlier, keep)
        return outputs

    def _outputs(self, buffers: AnySet) -> list[Tensor]:
        """Copies, where the expected values are."""
        return [output.to(self.cases.task.device_class, copy=True) for output in buffers.outputs]

    def _undamaged(self, buffers: AnySet, case: Case) -> None:
        damaged = buffers.canaries_intact()
        if damaged:
            raise Failed(Reason.out_of_bounds, f"{case.name}: memory was written {' and '.join(damaged)}")
        changed = buffers.inputs_changed()
        if changed:
            names = ", ".join(case.task.inputs[index].name for index in changed)
            raise Failed(Reason.input_changed, f"{case.name}: launch changed its input {names}")

    def _written(self, child: Child, buffers: AnySet, index: int, case: Case, first: tuple[Masks, Masks]) -> None:
        """An element left as it was poisoned was not written, or not before launch returned.

        `first`: which elements equal pattern 0, and which 1, after a call poisoned with 0; the next is with 1.
        A right value may look like a poison, but then it does so in both calls.
        """
        if child.late_writes(LATE_SECONDS):
            raise Failed(Reason.late_write, f"{case.name}: outputs were written only after launch had returned")
        buffers.poison(1)
        child.call(index, self.deadline)
        self._undamaged(buffers, case)
        masks = zip(*first, buffers.holding(0), buffers.holding(1), strict=True)
        for spec, (first_0, first_1, second_0, second_1) in zip(case.task.outputs, masks, strict=True):
            missing = (first_0 & ~second_0) | (second_1 & ~first_1)
            count = int(missing.sum())
            if count:
                where = [int(axis) for axis in missing.nonzero()[0]]
                raise Failed(
                    Reason.not_written,
                    f"{case.name}: {count} of {missing.numel()} elements of {spec.name} were not written, "
                    f"the first at {where}",
                )

    def _values(self, outputs: list[Tensor], case: Case, earlier: Sequence[Case], keep: bool) -> None:
        for number, (spec, output, expected) in enumerate(zip(case.task.outputs, outputs, case.expected, strict=True)):
            found = compare(spec.name, output, expected)
            if keep:
                self.comparisons.append(found)
            if found.reason is None:
                continue
            for old in earlier:
                kept = old.expected[number]
                telling = kept.eager.shape == output.shape and output.numel() > 0 and not _constant(kept.eager)
                if telling and compare(spec.name, output, kept).reason is None:
                    text = f"{case.name}: {spec.name} is what {old.name} called for: {found.explanation}"
                    raise Failed(Reason.stale_output, text)
            raise Failed(found.reason, f"{case.name}: {found.explanation}")

    def _same(self, first: list[Tensor], again: list[Tensor], case: Case) -> None:
        for spec, one, other in zip(case.task.outputs, first, again, strict=True):
            if _bits_equal(one, other):
                continue
            if self.cases.task.allow.atomics and adds_in_any_order(self.kernel.source):
                self.warnings.append("runs differ in their last bits (within the tolerance): atomics or a parallel sum")
                return
            different = (one != other) & ~(one.isnan() & other.isnan())
            raise Failed(
                Reason.not_deterministic,
                f"{case.name}: two runs on the same inputs differ in {int(different.sum())} of {one.numel()} "
                f"elements of {spec.name}, and the kernel uses neither atomics nor a parallel sum",
            )


def adds_in_any_order(source: str) -> bool:
    """Whether a source uses what may honestly add in a different order each time: atomics, OpenMP reductions.

    Its comments and docstrings don't count.
    """
    return re.search(r"atomic\w*\s*[(<]|omp\s+atomic|reduction\s*\(", _code(source)) is not None


def _code(source: str) -> str:
    """A kernel file without the comments of its Python and of the text it holds; as it is where it can't be read."""
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return source
    bare = {
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    kept = []
    for token in tokens:
        if token.type == tokenize.STRING:
            text = "" if token.start[0] in bare else token.string
            kept.append(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL))
        elif token.type != tokenize.COMMENT:
            kept.append(token.string)
    return " ".join(kept)


def sweep(task: Task, bounds: dict[str, tuple[int, int | None]], seed: int) -> list[Sizes]:
    """Other sizes to run at: all smallest, each dim empty, one past the task's own, and three hidden ones."""
    open_dims = {name: (low, high) for name, (low, high) in bounds.items() if high is None or low < high}
    if not open_dims:
        return []
    generator = torch.Generator().manual_seed(seed)
    found: list[Sizes] = [{name: max(low, 1) for name, (low, _) in open_dims.items()}]
    own = {name: task.dims[name].value for name in open_dims}
    found += [{**own, name: 0} for name, (low, _) in open_dims.items() if low == 0]
    found.append({name: _clip(value + 1, open_dims[name]) for name, value in own.items()})
    for _ in range(3):
        one: dict[str, int] = {}
        for name, limits in open_dims.items():
            pool = [size for size in _pool(own[name]) if size == _clip(size, limits)] or [own[name]]
            one[name] = pool[int(torch.randint(len(pool), (), generator=generator))]
        found.append(one)
    kept: list[Sizes] = []
    for sizes in found:
        if sizes not in kept and sizes != own:
            kept.append(sizes)
    return kept


def reduced(task: Task, bounds: dict[str, tuple[int, int | None]], limit: int) -> Sizes | None:
    """Sizes that bring the task under `limit` elements, by cutting its longest served dims; None if they can't."""
    total = elements(task)
    sizes: dict[str, int] = {}
    for name in sorted(bounds, key=lambda name: -task.dims[name].value):
        if total <= limit:
            break
        value = task.dims[name].value
        size = max(-(-value * limit // total), 4, bounds[name][0])
        if size < value:
            sizes[name] = size
            total = total * size // value
    return sizes if sizes and total <= 2 * limit else None


def elements(task: Task) -> int:
    """Elements of the largest tensor."""
    return max((_count(spec.shape) for spec in (*task.inputs, *task.outputs)), default=0)


def _pool(value: int) -> list[int]:
    """Odd, prime, 2ⁿ±1, and beside the value itself; none above twice the value (or 65)."""
    power = 1 << max(value.bit_length() - 1, 1)
    wanted = {2, 3, 5, 7, 13, 17, 31, 61, value - 1, value + 3, power - 1, power + 1, value // 2, 2 * value - 1}
    return sorted(size for size in wanted if 1 < size <= max(2 * value, 65) and size != value)


def _clip(size: int, limits: tuple[int, int | None]) -> int:
    return max(limits[0], size if limits[1] is None else min(size, limits[1]))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _sizes(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _constant(values: Tensor) -> bool:
    return bool((values == values.reshape(-1)[0]).all())


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    return (
        torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        if one.dim()
        else (torch.equal(one, other) or bool(one.isnan() & other.isnan()))
    )
