"""The frozen data that rooms hand to each other and keep on disk. Imports neither torch nor numpy.

Every file carries `schema`; fields are only ever added. Shapes are in elements, strides in elements, sizes in bytes,
device times in microseconds, wall times in seconds.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from autokernel.errors import BrokenFile, NewerSchema

SCHEMA = 1


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lower(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def _upper(value: Any) -> Any:
    return sys.float_info.max if isinstance(value, float) and not math.isfinite(value) else value


# JSON has neither infinity nor NaN: a figure without a finite value is None, a bound that says nothing is the widest
Finite = Annotated[float | None, BeforeValidator(_finite)]


def plain(text: Any) -> Any:
    """Without what a terminal would obey: control characters and those that turn the direction of text, as escapes.

    What a kernel, its compiler or an author says ends up on a terminal, in reports and in commits.
    """
    if not isinstance(text, str) or (text.isascii() and text.isprintable()):
        return text
    return "".join(char if char in _SPACES or char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    """ "\\x1b", "\\u202e"; line ends of other systems become ours."""
    return "\n" if char in "\r\v\f\u0085\u2028\u2029" else char.encode("unicode_escape").decode()


_SPACES = "\n\t\u00a0\u202f\u2009"  # the latter as units are written
Words = Annotated[str, BeforeValidator(plain)]
LowerBound = Annotated[float, BeforeValidator(_lower)]
UpperBound = Annotated[float, BeforeValidator(_upper)]


class Record(BaseModel):
    """A frozen record; unknown fields are refused, so that a typing mistake in a file is an error, not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(Record):
    """A record that is a file of its own."""

    schema_: int = Field(default=SCHEMA, alias="schema")

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from JSON. Raises `BrokenFile` or `NewerSchema`."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BrokenFile(path=path, detail=error) from error
        found = data.get("schema") if isinstance(data, dict) else None
        if isinstance(found, int) and found > SCHEMA:
            raise NewerSchema(path=path, found=found, known=SCHEMA)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise BrokenFile(path=path, detail=error) from error

    def dump(self) -> str:
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


# --- tasks --------------------------------------------------------------------------------------------------------


class Role(enum.StrEnum):
    """What an input is to the model; decides the values it is drawn with and what the caches find cold."""

    activation = "activation"
    parameter = "parameter"
    buffer = "buffer"
    index = "index"  # type: ignore[assignment]  # the word of task.json; no one calls str.index on a role
    mask = "mask"
    scalar = "scalar"


class Statistics(Record):
    """What was seen of an input's values in the model; values themselves are never stored."""

    mean: float | None = None
    std: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    fraction_inf: float = 0.0
    fraction_nan: float = 0.0
    fraction_zero: float = 0.0


class TensorSpec(Record):
    """A tensor of a task. `shape` and `stride` are concrete; `dims` names the extents that are free (None: fixed)."""

    name: str
    dtype: str  # "float32", "int64", ...: torch's own names without "torch."
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    dims: tuple[str | None, ...] | None = None
    role: Role = Role.activation
    domain: Literal["real", "positive", "unit", "causal_mask", "index", "bool", "structured"] = "real"
    high: int | None = None  # exclusive upper bound of an index
    statistics: Statistics | None = None


class Dim(Record):
    value: int
    free: bool = False
    min: int | None = None
    max: int | None = None


class Site(Record):
    """One place in the user's model where the region occurs."""

    graph: int
    nodes: tuple[str, ...]
    lines: tuple[str, ...] = ()  # "path.py:42  x = x + y", innermost user frame of each node, in order, without repeats


class Allow(Record):
    library_calls: bool = True
    tf32: bool = False
    atomics: bool = True


class Task(Document):
    """task.json."""

    id: str  # "03-residual-norm": the folder's name
    title: str  # one line a person understands: "add → rms norm"
    fingerprint: str
    shape_key: str
    phase: Literal["forward", "backward"] = "forward"
    device_class: str = "cpu"
    occurrences: int = 1
    sites: tuple[Site, ...] = ()
    dims: dict[str, Dim] = {}
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    mutates: tuple[str, ...] = ()
    rng: bool = False
    flops: int = 0
    min_bytes: int = 0
    kind: str = "other"  # pointwise | row | matmul | ...: what the partitioner calls it; "other" has no generator
    allow: Allow = Allow()


# --- candidates and verdicts ----------------------------------------------------------------------------------------


class Proposal(Record):
    """What an author hands over."""

    source: str
    language: str
    author: str
    hypothesis: Words = ""
    predicted_gain: float | None = None
    parent: str | None = None  # commit it was made from
    schedule: str | None = None  # the schedule as text, for generated kernels
    tokens: int = 0
    cost_usd: float = 0.0


class Stage(enum.StrEnum):
    """Judging, in order."""

    check = "check"
    compile = "compile"
    load = "load"
    smoke = "smoke"
    screen = "screen"
    shapes = "shapes"
    stability = "stability"
    determinism = "determinism"
    edges = "edges"
    timing = "timing"
    confirm = "confirm"
    sanitizer = "sanitizer"  # on a GPU, for a kernel that could be kept: NVIDIA's compute-sanitizer on small shapes


class Reason(enum.StrEnum):
    """Why a verdict is what it is. `ok` goes with accepted only."""

    ok = "ok"
    bad_source = "bad_source"
    compile_error = "compile_error"
    exception = "exception"
    died = "died"
    timeout = "timeout"
    out_of_memory = "out_of_memory"
    protocol = "protocol"
    not_written = "not_written"
    out_of_bounds = "out_of_bounds"
    library_call = "library_call"  # of an operator of PyTorch's, where the task allows none
    race = "race"  # threads of one block meet in shared memory, unordered
    input_changed = "input_changed"
    wrong_values = "wrong_values"
    wrong_special_values = "wrong_special_values"
    stale_output = "stale_output"
    late_write = "late_write"
    not_deterministic = "not_deterministic"
    time_impossible = "time_impossible"
    time_disagrees = "time_disagrees"
    too_slow = "too_slow"  # right so far (smoke), not faster in the screen: the other stages were not run
    harness = "harness"


class Outcome(enum.StrEnum):
    accepted = "accepted"
    rejected = "rejected"
    suspect = "suspect"
    error = "error"


class StageResult(Record):
    name: Stage
    status: Literal["passed", "failed", "skipped"]
    seconds: float
    detail: Words = ""


class ErrorFigures(Record):
    """Largest over all checked outputs. `max` and `rmse` are the candidate's against the float64 oracle.

    None: not a finite number (an infinity or NaN where a value was due).
    """

    max: Finite
    rmse: Finite
    eager_max: Finite
    eager_rmse: Finite
    tolerance: Finite  # largest |err| / tolerance; above 1 is a failure


class Timing(Record):
    """Candidate against opponent. `speedup` is opponent time / candidate time; the interval is of the same ratio."""

    incumbent_us: float
    candidate_us: float
    speedup: float
    ci_low: LowerBound
    ci_high: UpperBound
    confidence: float = 0.95
    floor_us: Finite = None
    ceiling_us: Finite = None
    pct_of_ceiling: Finite = None
    pairs: int
    clock: str = "parent"
    confirmed: bool = False
    cache: Literal["cold", "warm"] | None = None  # on a GPU: how the L2 cache was found, as in the model
    other_cache_us: Finite = None  # the candidate's time with the cache in the other state


class Resources(Record):
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    code_bytes: int | None = None


class Sanitized(Record):
    """What was seen of a kernel that could be kept under compute-sanitizer; a finding is the verdict's own reason."""

    tools: tuple[Literal["memcheck", "racecheck"], ...] = ()  # that ran to their end
    version: str | None = None
    sizes: tuple[str, ...] = ()  # that it was called at: "s0=61"; "its own" without free dims
    not_run: Words = ""  # why a tool did not run, or not to its end

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.tools) < 2 and not self.not_run:
            raise ValueError("a tool that did not run has a reason")
        if self.tools and self.version is None:
            raise ValueError("a tool that ran has a version")
        return self


class Verdict(Document):
    """verdicts/N.json. Accepted means trustworthy, not faster."""

    task: str
    kernel_sha256: str
    device: str
    isolation: Literal["bubblewrap", "plain", "none"]
    verdict: Outcome
    stage: Stage
    reason: Reason
    explanation: Words = ""  # for the author: which element, which values, how far over
    stages: tuple[StageResult, ...] = ()
    error: ErrorFigures | None = None
    timing: Timing | None = None
    kernels_launched: tuple[str, ...] = ()  # aten.*, triton.*, cpp.*: what one call ran, as the kernel's process tells
    resources: Resources = Resources()
    peak_memory: int = 0
    sanitizer: Sanitized | None = None  # None: not on a GPU, or not a kernel that could be kept
    warnings: tuple[Words, ...] = ()
    seconds: float = 0.0
    # the loop adds these for a kept kernel: against the region in eager and alone under Inductor, each side by side
    baselines: dict[Literal["eager", "inductor"], Timing] = {}
    first_incumbent: Literal["eager", "inductor"] | None = None  # the faster of the two, chosen once a run

    @property
    def wins(self) -> bool:
        """Confirmed to be faster than the task's first incumbent, and not behind the other of eager and Inductor."""
        timing = self.baselines.get(self.first_incumbent) if self.first_incumbent else None
        ahead = all(other.speedup > 1.0 for other in self.baselines.values())
        return timing is not None and timing.confirmed and timing.ci_low > 1.0 and ahead

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.verdict is Outcome.accepted) != (self.reason is Reason.ok):
            raise ValueError("reason is ok exactly when the verdict is accepted")
        slow = self.verdict is Outcome.rejected and self.reason is Reason.too_slow
        if self.timing is not None and self.verdict in (Outcome.rejected, Outcome.error) and not slow:
            raise ValueError("only a kernel that is right as far as it was looked at has a timing")
        failed = [stage for stage in self.stages if stage.status == "failed"]
        if self.verdict is Outcome.accepted and failed:
            raise ValueError("an accepted kernel has no failed stage")
        return self


# --- the journal ----------------------------------------------------------------------------------------------------


class Decision(enum.StrEnum):
    kept = "kept"
    reverted = "reverted"


class Trial(Record):
    """One experiment: a line of results.tsv. Field order is column order; the first ten are AutoKernel's own."""

    experiment: int
    tag: str
    kernel_type: str
    throughput_tflops: float | None = None
    latency_us: float | None = None
    pct_peak: float | None = None
    speedup_vs_pytorch: float | None = None
    correctness: str  # PASS | FAIL | SUSPECT | ERROR
    peak_vram_mb: float | None = None
    description: Words = ""
    task: str
    decision: Decision
    reason: str
    speedup_vs_incumbent: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    speedup_vs_compile: float | None = None
    commit: str
    proposer: str
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float
    finished_at: str  # ISO 8601, UTC

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.decision is Decision.kept and self.correctness != "PASS":
            raise ValueError("only a correct kernel can be kept")
        return self


class FirstIncumbent(Document):
    """verdicts/first-TASK.json: what a task's kernels have to beat, measured once a run.

    `timing` has eager as the incumbent and Inductor as the candidate; None when `kind` is the only one that runs.
    """

    task: str
    kind: Literal["eager", "inductor"]
    timing: Timing | None = None
    note: Words = ""  # why only one of them runs
    seconds: float = 0.0


class SameAgainstSame(Document):
    """verdicts/aa-N.json: one kernel timed against itself after experiment N; what differs is the device's noise."""

    task: str
    timing: Timing
    min_gain_before: float
    min_gain_after: float
    claimed: bool = False  # it "won" or "lost" against itself, which made `min_gain_after` larger


# --- runs -------------------------------------------------------------------------------------------------------------


class RunConfig(Document):
    """What a run was asked to do; kept in run.toml."""

    target: str
    name: str
    device: str = "cpu"
    dtype: str | None = None
    batch: int | None = None
    seq: int | None = None
    image: int | None = None
    workload: Literal["prefill", "decode"] = "prefill"
    random_weights: bool = False
    trust_remote_code: bool = False
    mode: Literal["inference", "training"] = "inference"
    proposer: str = "search"
    budget_seconds: float = 1800.0
    experiments: int | None = None
    isolation: Literal["auto", "bubblewrap", "plain"] = "auto"
    min_gain: float | None = None
    threads: int | None = None
    require_gain: bool = False


# --- profile ----------------------------------------------------------------------------------------------------------


class RegionRow(Record):
    """One fingerprint's part in the model's time. Times are for one call of the model, all occurrences together."""

    task: str | None  # the task's id once it has a folder
    fingerprint: str
    shape_key: str
    title: Words
    kind: str
    occurrences: int
    time_us: float
    share: float
    floor_us: float
    recoverable_us: float
    flops: int  # one occurrence
    min_bytes: int  # one occurrence
    generator: str | None  # the generator's kind; None: nobody but an LLM, an agent or you can write it
    reason: Words = ""  # why no generator
    lines: tuple[Words, ...] = ()
    dtype: str = ""  # whose matrix rate bounds it: of its largest floating tensor; "" in profiles that lack it


class LineRow(Record):
    line: Words  # "path.py:42  x = x + y"
    time_us: float
    share: float


MaskKind = Literal["none", "causal", "given"]


class MaskRow(Record):
    """Attentions that are handed a mask in the captured graphs, alike in all that is known of it."""

    count: int  # in one call of the model
    folds_to: MaskKind  # what the mask amounts to, element by element; "given": neither nothing nor causal, or unknown
    reason: Words
    eager: MaskKind | None  # what the same calls are handed when nothing traces; None: not told apart
    traced_as: Literal["flash", "cudnn", "efficient", "unfused"] | None = None  # in a compiler's trace; None: not asked
    dtype: str = ""
    time_us: float = 0.0
    share: float = 0.0
    lines: tuple[Words, ...] = ()


class Ceilings(Document):
    """What this device was measured to reach. Bandwidth counts bytes read plus bytes written."""

    device: str
    threads: int
    bandwidth: tuple[tuple[int, float], ...]  # (total bytes moved, bytes per second), ascending sizes
    matrix: dict[str, float]  # dtype → flop per second of a large matrix product
    measured_at: str
    launch_us: float = 0.0  # what the shortest kernel takes inside a CUDA graph: nothing on a GPU is faster
    l2_bytes: int | None = None
    sms: int | None = None
    driver: str | None = None
    spec_bytes_per_second: float | None = None  # of the memory, by its clock and width; None where not known
    spec_flops: dict[str, float] = {}  # dtype → flop per second that no chip of this size and clock can pass

    def bytes_per_second(self, size: int) -> float:
        """Bandwidth at a size, interpolated between the measured points (log of the size)."""
        points = self.bandwidth
        if size <= points[0][0]:
            return points[0][1]
        for (small, slow), (large, fast) in itertools.pairwise(points):
            if size <= large:
                part = math.log(size / small) / math.log(large / small)
                return slow + part * (fast - slow)
        return points[-1][1]

    def floor_us(self, flops: int, size: int, dtype: str) -> float:
        """The larger of the roofs: bytes over bandwidth at that size, flops over the matrix rate, one launch."""
        rate = self.matrix.get(dtype) or max(self.matrix.values())
        return max(1e6 * size / self.bytes_per_second(max(size, 1)), 1e6 * flops / rate, self.launch_us)

    def bound_us(self, flops: int, memory_bytes: int, dtype: str) -> float:
        """What no right kernel can be faster than, by the device's own clocks and widths; 0 where they aren't known.

        `memory_bytes`: only bytes that must cross to or from memory; what L2 may hold or keep has no such bound.
        """
        moving = memory_bytes / self.spec_bytes_per_second if self.spec_bytes_per_second else 0.0
        rate = self.spec_flops.get(dtype)
        return 1e6 * max(moving, flops / rate if rate else 0.0)


class Profile(Document):
    """profile.json."""

    target: str
    device: str
    threads: int
    total_us: float  # instrumented
    uninstrumented_us: float
    attributed: float  # fraction of the time in a region or a named op
    regions: tuple[RegionRow, ...]  # most recoverable time first
    lines: tuple[LineRow, ...]
    skipped: tuple[Words, ...] = ()  # parts that could not be captured, each with its reason
    ceilings: Ceilings
    device_name: str | None = None
    busy_us: float | None = None  # a GPU's: some kernel of the undisturbed model runs; `attributed` is of this
    gaps_us: float | None = None  # the rest of the call: the GPU waits for the CPU; a row of kind "gap"
    notes: tuple[str, ...] = ()  # how it was measured, where that is not the usual way
    outside_us: float = 0.0  # in a call, but in none of the captured graphs
    masks: tuple[MaskRow, ...] = ()
    flags: tuple[str, ...] = ()  # what was asked for besides target and device: ("--batch", "8")


# --- proof ------------------------------------------------------------------------------------------------------------


class BaselineRow(Record):
    """A whole-model baseline. `ratio` is its time over ours, paired; above 1 means ours is faster."""

    name: str  # "eager" | "torch.compile" | "max-autotune", each also as "… + CUDA graphs"
    ms: float
    ratio: float
    ci_low: float
    ci_high: float
    pairs: int | None = None  # interleaved, that the ratio is from


class OutputRow(Record):
    """One output of the model: largest |err| against float64 (ours, eager), and the largest |err| / tolerance.

    An error of None is not a finite number, as in `ErrorFigures`; `worst` is then the largest number there is.
    """

    name: str
    max_error: Finite
    eager_max_error: Finite
    worst: UpperBound
    top1_agreement: float | None = None
    passed: bool
    reference: Literal["float64", "eager"] = "float64"  # eager: no float64 run existed, or was too large


class WinnerRow(Record):
    task: str
    title: str
    occurrences: int
    engaged: int  # calls seen in one profiled pass
    speedup_alone: float | None  # against the first incumbent, confirmed by the judge
    in_model: float | None  # model time without it / with it, paired
    ci_low: float | None
    ci_high: float | None
    kept: bool
    note: Words = ""


class AttentionRow(Record):
    """Attention that stays in the graph, its masks folded and its kernel pinned: all places together, as one winner."""

    sites: tuple[str, ...]  # in words, "16 × attention: mask folded to causal, flash"
    in_model: float | None = None  # model time without it / with it, paired
    ci_low: float | None = None
    ci_high: float | None = None
    kept: bool
    note: Words = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kept and not self.sites:
            raise ValueError("a rewrite that stays has changed something")
        return self


class Proof(Document):
    """proof.json: what `verify` found."""

    result: Literal["gain", "no gain", "failed"]
    recommended: str  # "autokernel" or the name of the best baseline
    compiled_as: str  # the baseline whose compilation mode the installed graph uses
    ours_ms: float | None
    pairs: int
    best_baseline: str
    baselines: tuple[BaselineRow, ...]
    outputs: tuple[OutputRow, ...]
    winners: tuple[WinnerRow, ...]
    attention: AttentionRow | None = None  # None: nothing was rewritten
    fallbacks: int = 0
    notes: tuple[str, ...] = ()
    finished_at: str

    @model_validator(mode="after")
    def _possible(self) -> Self:
        engaged = any(row.kept and row.engaged for row in self.winners)
        if self.result == "gain" and not engaged and not (self.attention is not None and self.attention.kept):
            raise ValueError("a gain needs a kept winner that was seen to run, or rewritten attention that stays")
        return self


class KeptKernel(Record):
    """A winner that stayed in the model: its task, and its source as it was verified."""

    task: Task
    source: str
    speedup_alone: float | None = None


class KeptKernels(Document):
    """winners.json: what `apply` puts into the model; later, unverified experiments don't change it."""

    compiled_as: Literal["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-graphs", "eager-graphs"]
    torch: str
    device_class: str
    kernels: tuple[KeptKernel, ...]
    attention: bool = False  # whether attention that stays in the graph is rewritten too
    finished_at: str
