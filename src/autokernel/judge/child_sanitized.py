"""The program that compute-sanitizer looks at: one launch over each set, in a process of its own.

It is exec'd in the sandbox by the tool (see child_program.py) and runs candidate code by child.py's functions. Its
descriptors: the tool's log (not ours to read), the job as JSON, then the values of each set.

Every input and output is an allocation of its own that ends with its last element, and so is every workspace of the
kernel's: the parent turned PyTorch's caching allocator off. Beyond lies padding, which the tool reports when touched.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import replace

import torch
from torch import Tensor

from autokernel.judge import child
from autokernel.judge.buffers import Layout, Slot
from autokernel.judge.child_program import FIRST_FD
from autokernel.judge.cuda_buffers import device_view

LOG, JOB, FIRST_SET = FIRST_FD, FIRST_FD + 1, FIRST_FD + 2


def main() -> None:
    """Entry of the exec'd process; any exception of the kernel's ends it with a traceback and a status that isn't 0."""
    job = child._read_json(JOB)
    torch.set_num_threads(job["threads"])
    if job["device"] == "cuda":
        from autokernel.judge import child_cuda

        child_cuda.begin(job)
    layouts = [Layout.from_json(layout) for layout in job["layouts"]]
    sets = [_allocated(layout, FIRST_SET + number, job["device"]) for number, layout in enumerate(layouts)]
    with torch.no_grad():
        runner = child._load(job, sets, None)
        for call in runner.calls:
            call()
            if job["device"] == "cuda":
                torch.cuda.synchronize()


def _allocated(layout: Layout, fd: int, device: str) -> tuple[list[Tensor], list[Tensor]]:
    with mmap.mmap(fd, layout.size, access=mmap.ACCESS_READ) as memory:
        inputs = [_own(slot, device, memory[slot.base : slot.base + slot.bytes]) for slot in layout.inputs]
    os.close(fd)
    return inputs, [_own(slot, device, None) for slot in layout.outputs]


def _own(slot: Slot, device: str, values: bytes | None) -> Tensor:
    """A tensor in memory of its own, filled by a copy: no kernel of PyTorch's runs for it."""
    memory = torch.empty(slot.bytes, dtype=torch.uint8, device=device)
    if values is not None:
        memory.copy_(torch.frombuffer(bytearray(values), dtype=torch.uint8))
    return device_view(memory, replace(slot, base=0))
