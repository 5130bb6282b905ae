"""program.md: what an author of kernels is told, in words that hold for a person, an LLM and an agent alike."""

from __future__ import annotations

from collections.abc import Iterable

from autokernel.records import RunConfig, Task

NAME = "program.md"

_TEXT = """\
# Writing kernels for {name}

This folder is an autokernel run. Each folder under `tasks/` is one place of the model that was cut out:
`task.json` (shapes, strides, dtypes, how often it occurs), `reference.py` (the same computation in plain PyTorch; it
runs alone) and, once there is one, `kernel.py` (the best kernel so far, the *incumbent*).

Your work: make `kernel.py` of a task faster while it stays right. One change at a time:

1. Read `tasks/NN-slug/reference.py`, `task.json`, the incumbent and what was tried (`results.tsv`).
2. Write a complete kernel file. It defines {language} and
   `launch(*inputs, *outputs)`: inputs in the order of `Model.forward`, parameters and buffers included, then the
   outputs, already allocated. It writes the outputs and returns nothing. Sizes come from the tensors.
3. `autokernel submit {path} NN --kernel FILE`. The judge checks and times it; a kernel that is right and confirmed
   faster becomes the incumbent and is committed, anything else is reverted. Its source stays in git either way.
4. `autokernel show {path} N` gives experiment N's change and verdict, with the element that was wrong or the times.

## What the judge does
- It runs the kernel in processes of its own, on inputs it has never seen: the model's shapes, others inside the
  task's limits, extreme and special values, odd strides and alignments. Results are compared with a float64 run;
  the tolerance grows with PyTorch's own error.
- Every output element must be written on every call, inputs stay as they are, nothing outside the outputs is touched,
  and the work is over when `launch` returns.
- Times come from the judge's clock, in pairs of fresh processes against the incumbent. A gain must be at least
  {min_gain}, with its confidence bound above zero, and be confirmed in a second measurement.
- A clearly shorter kernel that is not slower is kept too.
- Before the first accepted kernel the opponent is PyTorch itself: the faster of eager and torch.compile.

## What pays
- Bytes first: `min_bytes` over the bandwidth of this device is the floor of most tasks. Read every input once, write
  every output once, keep what is needed again in registers or cache.
- {advice}
- Move to the next task when five attempts in a row were reverted, or at 97 % of the ceiling.

## Rules
Write kernel files only. Don't edit `task.json`, `reference.py`, `results.tsv`, `verdicts/` or the git refs; a run that
was edited can't be trusted. `tasks/*/kernel.py` always shows the incumbent: keep drafts elsewhere.

## Tasks
{tasks}
"""


_LANGUAGE = {
    "cpp": '`LANGUAGE = "cpp"`, `SOURCE` (the C++ text, a plain string literal)',
    "triton": '`LANGUAGE = "triton"`, kernels under `@triton.jit` (no import but torch and triton)',
}
_ADVICE = {
    "cpp": "Parallelise over the outer dimension with OpenMP; let the compiler vectorise the inner loop; "
    "no `-ffast-math`.",
    "triton": "Loads of 16 bytes a thread along the contiguous dimension, tens of kilobytes in flight on each "
    "multiprocessor;\n  a whole row in registers while it fits; launch on the current stream, and don't wait for it.",
}


def program(config: RunConfig, tasks: Iterable[Task]) -> str:
    lines = [
        f"- `{task.id}`: {task.title}, {task.occurrences} × in the model, "
        f"{', '.join('×'.join(map(str, spec.shape)) + ' ' + spec.dtype for spec in task.inputs)}"
        for task in tasks
    ]
    gain = f"{100 * config.min_gain:g} %" if config.min_gain is not None else "0.5 % (more on a noisy machine)"
    language = "cpp" if config.device == "cpu" else "triton"
    chosen = {"language": _LANGUAGE[language], "advice": _ADVICE[language]}
    return _TEXT.format(**chosen, name=config.name, path="RUN", min_gain=gain, tasks="\n".join(lines) or "- none")
