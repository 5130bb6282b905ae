"""The trusted side. Door: `Judge` (judge.py), `Opponent`, and `Request`.

judge.py      Judge: verdicts for one task
bench.py      run_bench: one kernel file against one reference; open_sandbox
stages.py     the five correctness stages
cases.py      what a kernel is asked to compute in them; SERVES
contest.py    two sides timed against each other
kernels.py    from text to what a child runs
oracle.py     the float64 oracle and eager's own error
tolerance.py  per-element tolerance, comparison, explanation
pairs.py      paired timing in fresh processes, the rules of screen, test and confirmation
thresholds.py caps and least gain from the device's own spread
timing.py     one timed block, on values never seen
inductor.py   the reference under Inductor, compiled ahead of time
seeds.py      secret seeds and their commitment
sandbox.py    owns one exec'd zygote; gives out children
isolation.py  bubblewrap or plain: namespaces, capabilities, environment
zygote.py     forks, stops, continues and kills children
children.py   one child as the parent sees it: commands, deadlines, the parent's clock
samples.py    what is in the outputs at "done"
protocol.py   fixed-size binary records between parent and child
buffers.py    shared memory with canaries and poison
sets.py       a set of buffers where a task runs
generated.py  runs a text that Inductor generated
child.py      the one file that runs candidate code
child_program.py  a program in the child's place

On a GPU:
timing_cuda.py   one timed block: passes as CUDA graphs, values changed while they run
cuda_buffers.py  a set in device memory; cuda_memory.py: allocations of its own, shared by CUDA IPC
host_buffers.py  a set copied through host memory, where IPC is refused
child_cuda.py    the child's side: opened memory, graphs
sanitizer.py     a kernel that could be kept under compute-sanitizer; child_sanitized.py: the program it looks at
controls.py   one control that must pass and one that must fail
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Opponent:
    """What a candidate is timed against, always measured again: a kernel's source, or the reference itself."""

    kind: Literal["kernel", "eager", "inductor"]
    source: str | None = None


@dataclass(frozen=True)
class Request:
    """How far to go. `correctness` stops after the stages, `screen` takes a first time, `full` is for a keep.

    `drop_slow`: after smoke, reject what is no faster in the screen as `too_slow`. Without it all stages are run, and
    then a fixed number of pairs is timed, whichever side they favour.
    """

    level: Literal["correctness", "screen", "full"] = "full"
    min_gain: float = 0.005
    max_pairs: int = 25
    spread: float = 0.0  # of one pair of a kernel against itself, where it was measured; what the screen allows for
    deadline_seconds: float = 30.0  # for any single step of the child
    drop_slow: bool = True
    sanitize: bool = True  # on a GPU, run what could be kept under compute-sanitizer, where that is installed
