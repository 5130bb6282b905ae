"""A plan as C++: one function `launch`, plain loops with OpenMP pragmas that the compiler turns into vectors."""

from __future__ import annotations

from autokernel.generate.mathlib import sections_for
from autokernel.generate.nest_cpp import NestWriter
from autokernel.generate.plan import Plan
from autokernel.generate.schedule import Schedule
from autokernel.generate.text_cpp import STORAGE, Names

_WIDTH = 118


def emit(plan: Plan, schedule: Schedule) -> str:
    """The C++ text for a plan. Pure: equal arguments give equal bytes.

    `launch` takes the inputs' and outputs' pointers in order and the number of threads. It returns 0, or 1 when an
    index read from an input lay outside its tensor.
    """
    names = Names()
    buffers = (*plan.inputs, *plan.outputs, *plan.workspaces)
    symbols = {buffer.name: names.fresh(buffer.name) for buffer in buffers}
    dtypes = {buffer.name: buffer.dtype for buffer in buffers}
    body: list[str] = []
    for buffer in plan.workspaces:
        kind, symbol = STORAGE[buffer.dtype], symbols[buffer.name]
        body.append(f"const std::unique_ptr<{kind}[]> {symbol}_memory(new {kind}[{buffer.elements}]);")
        body.append(f"{kind}* const {symbol} = {symbol}_memory.get();")
    writers = [NestWriter(nest, schedule, symbols, dtypes, names) for nest in plan.nests]
    checks = any(writer.checks for writer in writers)
    if checks:
        body.append("int bad = 0;  // set when an index lies outside its tensor")
    for writer in writers:
        body += writer.write()
    body.append("return bad;" if checks else "return 0;")
    parameters = [f"const {STORAGE[b.dtype]}* __restrict {symbols[b.name]}" for b in plan.inputs]
    parameters += [f"{STORAGE[b.dtype]}* __restrict {symbols[b.name]}" for b in plan.outputs]
    head = f'extern "C" int launch({", ".join(parameters)}, int threads) {{'
    if len(head) > _WIDTH:
        head = 'extern "C" int launch(\n    ' + ",\n    ".join([*parameters, "int threads"]) + "\n) {"
    code = "\n".join(["    " + line for line in body])
    includes = ["#include <cmath>", "#include <cstdint>"] + (["#include <memory>"] if plan.workspaces else [])
    pieces = ["\n".join(includes), sections_for(code), f"{head}\n{code}\n}}"]
    return "\n\n".join(piece for piece in pieces if piece) + "\n"
