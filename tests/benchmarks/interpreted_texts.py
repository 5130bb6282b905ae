"""Runs kernel texts in Triton's interpreter, all in this one process: writes, as JSON, which of them are wrong.

Started with TRITON_INTERPRET=1 by test_kernel_texts.py. Streams are not there on a CPU: stand-ins do nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import torch
from triton.runtime import interpreter

from autokernel.testing.cheaters import CUDA_CHEATS, CUDA_ODD, reference

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ops

FOLDER = Path(tempfile.mkdtemp())
NEEDS_A_DEVICE = ("autotuned on its first call",)


class Stream:
    def wait_stream(self, other):
        pass


def whole_numbers_from_arrays():
    """NumPy ≥ 2.4 makes no int of an array of one element; Triton 3.6 wants one for `range` over an argument."""
    plain = interpreter._LangPatchScope.set_attr

    def set_attr(self, place, name, value):
        plain(self, place, name, (lambda tensor: tensor.handle.data.item()) if name == "__index__" else value)

    interpreter._LangPatchScope.set_attr = set_attr


def module(name, text):
    path = FOLDER / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def texts():
    """(name, reference, kernel, most rows)"""
    small = (
        ops.softmax(5, 200), ops.rms_norm(5, 96), ops.residual_norm(5, 96),
        ops.add(3, 1000), ops.matmul(70, "float32"),
        dataclasses.replace(ops.matmul(70, "float32"), kernel=ops.MATMUL_BF16),  # `dot` of bf16 is wrong in there
    )  # fmt: skip
    for op in small:
        yield op.name, op.reference, op.kernel, None
    seen = set()
    for case in (*CUDA_CHEATS, *CUDA_ODD):
        text = case.twin if case.twin is not None else case.source
        if text not in seen and case.name not in NEEDS_A_DEVICE:
            seen.add(text)
            yield case.name, reference(case.task).read_text(), text, None if case.task == "matmul" else 8


def wrong(number, name, reference_text, kernel_text, rows):
    file = module(f"reference_{number}", reference_text)
    torch.manual_seed(number)
    model = file.Model(*file.get_init_inputs())
    given = [value[:rows] for value in file.get_inputs()]
    with torch.no_grad():
        expected = model(*given)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    kernel = module(f"kernel_{number}", kernel_text)
    for _ in range(2):  # twins of caches have met the values the second time
        outputs = [torch.full_like(value, float("nan")) for value in expected]
        kernel.launch(*given, *(parameter.detach() for parameter in model.parameters()), *outputs)
        for output, value in zip(outputs, expected, strict=True):
            near = 2e-2 if value.dtype is torch.bfloat16 else 2e-5
            if not torch.allclose(output.float(), value.float(), rtol=near, atol=near):
                return f"{name}: off by {(output.float() - value.float()).abs().max():.3g}"
    return None


def main():
    whole_numbers_from_arrays()
    torch.cuda.Stream, torch.cuda.current_stream = Stream, Stream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.is_current_stream_capturing = lambda: False
    found = [(text[0], wrong(number, *text)) for number, text in enumerate(texts())]
    sys.stdout.write(json.dumps({"ran": [name for name, _ in found], "wrong": [w for _, w in found if w]}) + "\n")


if __name__ == "__main__":
    main()
