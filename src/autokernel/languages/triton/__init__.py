"""Triton: checked with ast, compiled without a GPU in a sandboxed process, found compiled by the judged child.

language.py   Triton: the Language; memoises, prefetches
source.py     what a kernel file says of itself, without running it
targets.py    "cuda:90" and what such a chip has; which one this machine has
pool.py       this process's side of the compiling processes
fence.py      how they are shut in
zygote.py     imports torch and triton once, forks a worker for each job, ends it at its deadline
worker.py     runs a candidate's `launch` on tensors without memory; every kernel it launches is compiled
standin.py    the driver and the torch.cuda that a worker sees
fakes.py      the tensors that it sees
folders.py    what is taken over from a worker: Triton cache folders, and moving them
binaries.py   registers, spills and shared memory, read from cubins and AMD assembly

Importing this package imports neither triton nor torch.
"""
