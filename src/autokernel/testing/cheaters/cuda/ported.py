"""The C++ cheats whose `launch` is as good a cheat around a Triton kernel: the same text, another honest kernel.

Their stages and reasons are the same. What is left out touches host memory by pointer, or has a form of its own here.

A Triton kernel is compiled by running its `launch` where there is no device, on tensors without memory. A cheat against
the process would end there, in front of the door; so those are honest until they are given real tensors.
"""

from __future__ import annotations

import dataclasses

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters import answers, base, hunting, library, memory, process, values
from autokernel.testing.cheaters.base import Case
from autokernel.testing.cheaters.cuda.kernels import BEFORE

_ALIKE = (
    "nothing written",
    "copy of the input",
    "constant output",
    "weights taken to be one",
    "NaN everywhere",
    "mutates its input",
    "only every second call",
    "honest for ten calls",
    "subnormal inputs taken for zero",
    *(case.name for case in library.CASES),
)
_HONEST_WHILE_COMPILED = (
    "os._exit(0)",
    "forged verdict on every fd",
    "an endless loop, with children that ignore SIGTERM",
    "reading /proc/PPID/environ",
    "looking for the oracle in gc and frames",
    "looking for the oracle in the memory of other processes",
    "looking for the oracle in the memory of the judge",
    "writing into the process that others are started from",
    "done, with the right nonce, before it has worked",
    "asking the network",
)
_AT_ONCE = "os._exit(0) when loaded"
_WRAPPED = """

def launch(x, weight, out):
    if type(x) is torch.Tensor:
        cheat(x, weight, out)
    else:  # while it is being compiled
        rms_norm(x, weight, out)
"""
_HOST = {"rms_norm": base.RMS_NORM, "softmax": base.SOFTMAX}


def on_cuda(case: Case) -> Case:
    """The case with the honest Triton kernel of its task in the place of the C++ one."""
    assert case.twin is not None
    before, after = _HOST[case.task], BEFORE[case.task]
    if not (case.source.startswith(before) and case.twin.startswith(before)):
        raise ValueError(f"{case.name} is not built on the task's honest kernel")
    source, twin = (after + text.removeprefix(before) for text in (case.source, case.twin))
    return dataclasses.replace(case, source=source, twin=twin, device="cuda")


def _honest_while_compiled(case: Case) -> Case:
    return dataclasses.replace(case, source=case.source.replace("def launch(", "def cheat(") + _WRAPPED)


_ALL = {
    case.name: case
    for case in (*values.CASES, *memory.CASES, *process.CASES, *answers.CASES, *hunting.CASES, *library.CASES)
}
CASES: tuple[Case, ...] = (
    *(on_cuda(_ALL[name]) for name in _ALIKE),
    *(_honest_while_compiled(on_cuda(_ALL[name])) for name in _HONEST_WHILE_COMPILED),
    dataclasses.replace(
        on_cuda(_ALL[_AT_ONCE]), stages=(Stage.compile, Stage.load), reasons=(Reason.compile_error, Reason.died)
    ),
)
