"""A kernel that could be kept, under NVIDIA's compute-sanitizer: memcheck, then racecheck, on small shapes.

Guard bytes show what a kernel writes beyond its outputs. They don't show what it reads there, nor threads of a block
that meet in shared memory unordered: such a kernel may be right a thousand times. The tool sees both, but slows a
kernel down too far for every candidate, and needs seconds to start. So it is asked once for each text, when all stages
have passed and the times are in the kernel's favour.

It runs inside the sandbox, as a child would (`Sandbox.program`), and so does what it looks at (child_sanitized.py). The
kernel shares a process with the tool's library and could hide from it, or write its log: this finds accidents. What
wants to deceive has to pass the stages all the same. Read are the tool's exit status and log, and only a status of 0
with one summary of no errors counts as clean; whatever can't be read so is "not run", with the reason.

A report counts against the kernel only where it names a function of the kernel file. Others (of a library that the
kernel calls) are remarks, and so are racecheck's warnings: the tool's own word for what may be meant.

Not covered: accesses to another tensor that is a megabyte away; shapes that aren't small; atomics and races between
blocks, in global memory; code in the kernel file that only large sizes reach.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from autokernel.judge import isolation
from autokernel.judge.buffers import BufferSet
from autokernel.judge.child_program import CANNOT_START, FIRST_FD
from autokernel.judge.children import Kernel
from autokernel.judge.protocol import printable
from autokernel.judge.sandbox import Sandbox
from autokernel.judge.stages import elements
from autokernel.records import Reason, Sanitized, Task, TensorSpec
from autokernel.task.dims import at
from autokernel.task.inputs import draw

Tool = Literal["memcheck", "racecheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck")
REASONS = {"memcheck": Reason.out_of_bounds, "racecheck": Reason.race}
DEADLINE = 60.0  # seconds for one tool: Python, PyTorch and a context start under it, then a few launches
MOST_ELEMENTS = 1 << 22  # of the largest tensor: what the tools check in a second or two
SIZES = (64, 61)  # of a free dim: as aligned as the model's, and odd
_PADDING = 1 << 20
_OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # every tensor is an allocation, as long as it is
_TRIVIAL = Kernel("source", "def launch(x, out):\n    out.copy_(x)\n")
_OUT = TensorSpec(name="out", dtype="float32", shape=(16,), stride=(1,))
_broken: dict[tuple[Path, str], str] = {}  # by tool and isolation: why it says nothing here; "" where it works
_FOUND = 86  # the exit status that stands for a finding
_LOG_BYTES = 1 << 18
_BLOCK = 30  # lines of a report that are shown

_SUMMARY: dict[str, re.Pattern[str]] = {
    "memcheck": re.compile(r"ERROR SUMMARY: ([\d,]+) errors?"),
    "racecheck": re.compile(r"RACECHECK SUMMARY: [\d,]+ hazards? displayed \(([\d,]+) errors?, [\d,]+ warnings?\)"),
}
_ACCESS = re.compile(r"\bat (?P<name>[^\n]*?)\+0x[0-9a-f]+")
_RACE = re.compile(r"(?P<severity>ERROR|WARNING): (\([^)]*\) )?(Race reported|Potential \w+ hazard)", re.IGNORECASE)


@dataclass(frozen=True)
class Looked:
    """What was found. `reason` and `finding` go together: why the kernel is refused, in the tool's words."""

    record: Sanitized
    remarks: tuple[str, ...] = ()
    reason: Reason | None = None
    finding: str = ""


@dataclass(frozen=True)
class Read:
    """One tool's log. `problem`: why it says nothing of the kernel; else it looked to the end, or until `finding`."""

    problem: str = ""
    finding: str = ""
    remarks: tuple[str, ...] = ()


class Sanitizer:
    """Looks at the kernels of one task, at each text once.

    `program`: the tool, for tests; by default compute-sanitizer where it is installed.
    """

    def __init__(self, task: Task, sandbox: Sandbox, program: Path | None = None) -> None:
        self.task, self.sandbox = task, sandbox
        self.program = program if program is not None else find()
        self._looked: dict[tuple[str, str], Looked] = {}

    def look(self, kernel: Kernel, bounds: Mapping[str, tuple[int, int | None]], seed: int) -> Looked:
        """`bounds`: the sizes that the kernel serves (cases.serves). Raises SandboxDied, NotComputable."""
        key = kernel.kind, kernel.source
        if key not in self._looked:
            self._looked[key] = self._look(kernel, bounds, seed)
        return self._looked[key]

    def _look(self, kernel: Kernel, bounds: Mapping[str, tuple[int, int | None]], seed: int) -> Looked:
        if self.program is None:
            return Looked(Sanitized(not_run="compute-sanitizer is not installed (or neither on PATH nor in CUDA_HOME)"))
        number = version(self.program)
        if number is None:
            return Looked(Sanitized(not_run=f"{self.program} does not say its version"))
        sizes = small_sizes(self.task, bounds)
        if not sizes:
            words = f"this kernel serves no shape of at most {MOST_ELEMENTS:,} elements a tensor"
            return Looked(Sanitized(version=number, not_run=words))
        if problem := self._broken():
            return Looked(Sanitized(version=number, not_run=problem))
        named = tuple(", ".join(f"{name}={size}" for name, size in one.items()) or "its own" for one in sizes)
        sets = [self._set(one, seed) for one in sizes]
        ended: tuple[Tool, ...] = ()
        remarks: tuple[str, ...] = ()
        for tool in TOOLS:
            read = self._run(tool, kernel, sets)
            remarks += tuple(f"compute-sanitizer ({tool}): {one}" for one in read.remarks)
            if read.problem:
                why = f"{tool}: {read.problem}"
                return Looked(Sanitized(tools=ended, version=number, sizes=named, not_run=why), remarks)
            ended += (tool,)
            if read.finding:
                left = TOOLS[len(ended) :]
                why = f"{', '.join(left)} was not asked after {tool}'s finding" if left else ""
                record = Sanitized(tools=ended, version=number, sizes=named, not_run=why)
                return Looked(record, remarks, REASONS[tool], f"{tool}, at {'; '.join(named)}: {read.finding}")
        return Looked(Sanitized(tools=ended, version=number, sizes=named), remarks)

    def _broken(self) -> str:
        """Why the tool says nothing here, whatever it looks at: found out once a process, by a copy of 16 numbers."""
        assert self.program is not None
        key = self.program, self.sandbox.isolation
        if key not in _broken:
            found = self._run("memcheck", _TRIVIAL, [BufferSet.create([torch.zeros(16)], [_OUT])])
            _broken[key] = found.problem or found.finding
        return _broken[key]

    def _set(self, sizes: Mapping[str, int], seed: int) -> BufferSet:
        task = at(self.task, sizes) if sizes else self.task
        return BufferSet.create(draw(task.model_copy(update={"device_class": "cpu"}), seed), task.outputs)

    def _run(self, tool: Tool, kernel: Kernel, sets: list[BufferSet]) -> Read:
        assert self.program is not None
        job = json.dumps(self._job(kernel, sets)).encode()
        log, described = os.memfd_create("autokernel-log", os.MFD_CLOEXEC), os.memfd_create("autokernel-job")
        try:
            os.pwrite(described, job, 0)
            status, stderr = self.sandbox.program(
                command(self.program, tool),
                [log, described, *(one.fd for one in sets)],
                DEADLINE,
                _OWN_ALLOCATIONS,
            )
            text = printable(os.pread(log, _LOG_BYTES, 0).decode("utf-8", "replace"))
        finally:
            os.close(log)
            os.close(described)
        if status is None:
            return Read(problem=f"too slow: it did not end within {DEADLINE:.0f} s")
        return read(tool, os.waitstatus_to_exitcode(status), text, stderr, kernel.source)

    def _job(self, kernel: Kernel, sets: list[BufferSet]) -> dict[str, Any]:
        return {
            "kind": kernel.kind,
            "source": kernel.source,
            "reference": kernel.reference,
            "parameters": kernel.parameters,
            "copies": kernel.copies,
            "threads": self.sandbox.threads,
            "device": self.sandbox.device,
            "index": self.sandbox.index,
            "caches": {"TRITON_CACHE_DIR": None, **{name: str(path) for name, path in kernel.caches}},
            "layouts": [one.layout.to_json() for one in sets],
        }


# --- the tool ---------------------------------------------------------------------------------------------------------


def find() -> Path | None:
    """compute-sanitizer: on PATH, else of the CUDA toolkit in CUDA_HOME or CUDA_PATH, else in its usual place."""
    name = "compute-sanitizer"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [os.path.join(home, "bin") for home in homes if home]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    return Path(found) if found is not None else None


@functools.cache
def version(program: Path) -> str | None:
    """ "2025.3.1.0"; None where the program can't be run or says something else."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^Version (\d[\w.]*)", done.stdout.decode("utf-8", "replace"), re.MULTILINE)
    return found[1] if found is not None and done.returncode == 0 else None


def command(program: Path, tool: Tool) -> list[str]:
    """The tool over the program it looks at; only that process, not what it may start (a compiler)."""
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--log-file", f"/proc/self/fd/{FIRST_FD}"]
    options += ["--target-processes", "application-only", "--launch-timeout", "60"]
    options += ["--show-backtrace", "no", "--print-limit", "20"]
    if tool == "memcheck":  # what PyTorch asks the driver for, and may be refused, is none of the kernel's doing
        options += ["--report-api-errors", "no", "--padding", str(_PADDING)]
    return [str(program), *options, *isolation.python("autokernel.judge.child_sanitized", "main")]


def small_sizes(task: Task, bounds: Mapping[str, tuple[int, int | None]]) -> list[dict[str, int]]:
    """Shapes to look at: each served dim 64 and 61, or as near as the kernel serves (none larger than in the model),
    and the smallest. Its own shape without such dims. None if all have tensors of more than `MOST_ELEMENTS`."""
    open_dims = {name: limits for name, limits in bounds.items() if limits[1] is None or limits[0] < limits[1]}
    wanted: list[dict[str, int]] = [{}] if not open_dims else []
    for size in (*SIZES, 1) if open_dims else ():
        one = {
            name: max(low, min(size, task.dims[name].value, size if high is None else high))
            for name, (low, high) in open_dims.items()
        }
        if one not in wanted:
            wanted.append(one)
    return [one for one in wanted if elements(at(task, one) if one else task) <= MOST_ELEMENTS]


# --- its log ----------------------------------------------------------------------------------------------------------


def read(tool: Tool, status: int, log: str, stderr: str, source: str) -> Read:
    """What a tool's exit status and log say of the kernel whose text is `source`."""
    own: list[str] = []
    remarks: list[str] = []
    for report in _reports(tool, log):
        ours = any(_defined(name, source) for name in _functions(report))
        warning = (found := _RACE.match(report)) is not None and found["severity"].lower() == "warning"
        if ours and not warning:
            own.append(report)
        else:
            remarks.append(_shown(report, 2) + ("" if ours else " (no function of this kernel file)"))
    if own:
        more = f"\n({len(own)} reports in all)" if len(own) > 1 else ""
        return Read(finding=_shown(own[0], _BLOCK) + more)
    totals = [int(found[1].replace(",", "")) for line in _lines(log) if (found := _SUMMARY[tool].fullmatch(line))]
    whole = len(totals) == 1 and "Internal Sanitizer Error" not in log
    if whole and status == 0 and totals == [0]:
        return Read(remarks=tuple(remarks))
    if whole and status == _FOUND and remarks and totals[0] > 0 and "Target application returned" not in log:
        return Read(remarks=tuple(remarks))
    return Read(_problem(status, log, stderr), remarks=tuple(remarks))


def _lines(log: str) -> Iterator[str]:
    """What follows the tool's "========= ", with its indentation."""
    for line in log.splitlines():
        if line.startswith("========="):
            yield line.lstrip("=").removeprefix(" ").rstrip()


def _reports(tool: Tool, log: str) -> list[str]:
    """Blocks of lines that tell of an access: a first line, then indented ones."""
    blocks: list[list[str]] = []
    for line in _lines(log):
        if line and not line.startswith(" "):
            blocks.append([line])
        elif line and blocks:
            blocks[-1].append(line)
    if tool == "racecheck":
        return ["\n".join(block) for block in blocks if _RACE.match(block[0])]
    return ["\n".join(block) for block in blocks if len(block) > 1 and block[1].strip().startswith("at ")]


def _functions(report: str) -> list[str]:
    """Names of device functions in a report, without what C++ puts around them."""
    found = []
    for match in _ACCESS.finditer(report):
        bare = re.sub(r"<.*>|\(.*\)", "", match["name"]).strip()
        found.append(re.split(r"[\s:]", bare)[-1])
    return found


def _defined(name: str, source: str) -> bool:
    """Whether a text has a function of this name (Triton: `def name`; CUDA C++: `void name(` in a string)."""
    return bool(name) and re.search(rf"\b(def\s+|void\b[^;{{}}]*?\b){re.escape(name)}\s*\(", source) is not None


def _shown(report: str, lines: int) -> str:
    return "\n".join(line.rstrip() for line in report.splitlines()[:lines])


def _problem(status: int, log: str, stderr: str) -> str:
    """Why a run says nothing of the kernel, as far as one can tell."""
    if status == CANNOT_START:
        return f"it can't be started in the sandbox ({stderr[-300:]})"
    said = [line for line in _lines(log) if line and line != "COMPUTE-SANITIZER" and "SUMMARY" not in line]
    words = "; ".join(line.strip() for line in said[:4]) or "its log is empty"
    tail = f"; the kernel's process says: {stderr.splitlines()[-1][:300]}" if stderr else ""
    return f"exit status {status}: {words[:600]}{tail}"
