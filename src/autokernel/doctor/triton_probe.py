"""Compiles a small Triton kernel for the first GPU, runs it and checks it: run as a program, with a cache of its own.

Triton also builds a C stub for each launcher, so a missing C compiler or missing Python headers show here.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"
import json
import sys
import time

import torch
import triton
import triton.language as tl

SIZE = 1000


@triton.jit
def add_one(x, out, size, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201 - a Triton signature takes no such types
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < size) + 1, mask=at < size)


def main() -> None:
    x = torch.arange(SIZE, device="cuda:0", dtype=torch.float32)
    out = torch.empty_like(x)
    begin = time.perf_counter()
    add_one[(triton.cdiv(SIZE, 256),)](x, out, SIZE, BLOCK=256)
    right = bool((out == x + 1).all())
    found = {"triton": triton.__version__, "right": right, "seconds": time.perf_counter() - begin}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
