"""The space of Triton schedules, the texts they make, and the files that come out."""

import ast
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from autokernel.generate import TritonSchedule, generate, schedules
from autokernel.generate.mathlib_triton import functions_for
from autokernel.generate.operators import TABLE
from autokernel.generate.operators_triton import TRITON
from autokernel.generate.space import Space
from autokernel.records import Dim

GOLDEN = Path(__file__).parent / "golden"
R = torch.randn
BF = torch.bfloat16


def test_every_operator_has_a_row_in_both_languages():
    assert list(TRITON) == list(TABLE)
    assert all(TRITON[key].rule == row.rule for key, row in TABLE.items())


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("rms_norm", [R(1, 256, 512), R(512)]),
        ("residual_norm", [R(1, 256, 512, dtype=BF), R(1, 256, 512, dtype=BF), R(512, dtype=BF)]),
        ("rotary", [R(1, 256, 512), R(256, 64), R(256, 64)]),
        ("masked_softmax", [R(1, 8, 256, 256), R(256, 256)]),
        ("swiglu", [R(1, 256, 1408), R(1, 256, 1408)]),
        ("transposed", [R(2, 256, 512)]),
    ],
)
def test_the_first_five_differ_in_kind_and_all_texts_differ(regions, make, name, inputs):
    region = make(regions(name).function, inputs)
    space = Space(region.task, region.module, "triton")
    first = space.first()
    texts = [space.code(schedule) for schedule in first]
    assert len(set(first)) == len(set(texts)) == len(first) >= 24
    assert len({space.code(schedule) for schedule in first[:5]}) == 5


def test_the_space_and_the_bytes_are_the_same_every_time(regions):
    first, second = regions("masked_softmax"), regions("masked_softmax")
    assert schedules(first.task, first.module, "triton") == schedules(second.task, second.module, "triton")
    schedule = TritonSchedule(structure="loop", block=16, rows=2)
    assert generate(first.task, first.module, schedule) == generate(second.task, second.module, schedule)


def test_a_neighbour_differs_in_one_choice(regions):
    region = regions("layer_norm")
    space = Space(region.task, region.module, "triton")
    base = space.first()[0]
    for other in space.neighbours(base):
        assert sum(getattr(other, axis) != getattr(base, axis) for axis in space.values) == 1


@pytest.mark.parametrize("width, structures", [(4096, {"whole", "loop"}), (32000, {"online", "loop", "whole"})])
def test_long_rows_are_looped_over_and_short_ones_kept_whole(make, width, structures):
    region = make(lambda x: F.softmax(x, -1), [R(8, width, dtype=BF)])
    first = schedules(region.task, region.module, "triton")[:5]
    assert {schedule.structure for schedule in first} == structures


def test_offsets_are_formed_in_64_bits_only_where_32_do_not_reach(regions, make):
    small = regions("swiglu")
    assert "int64" not in generate(small.task, small.module, TritonSchedule())
    big = make(lambda x: x * 2, [torch.empty(1).expand(3, 40)])
    strides = [spec.model_copy(update={"stride": (2**30, 1)}) for spec in big.task.inputs]
    task = big.task.model_copy(update={"inputs": tuple(strides)})
    assert ".to(tl.int64)" in generate(task, big.module, TritonSchedule(block=64))


def test_masks_are_left_out_where_extents_divide(regions, make):
    region = make(regions("rms_norm").function, [R(1, 64, 512), R(512)])
    assert "mask" not in generate(region.task, region.module, TritonSchedule(rows=4))
    few = make(regions("rms_norm").function, [R(1, 60, 512), R(512)])
    assert "mask=row_inside" in generate(few.task, few.module, TritonSchedule(rows=8))
    odd = make(regions("rms_norm").function, [R(1, 64, 500), R(500)])
    assert "mask=inside" in generate(odd.task, odd.module, TritonSchedule(rows=4))


def test_what_no_row_changes_is_computed_before_a_persistent_programs_rows(regions):
    region = regions("residual_norm")
    text = generate(region.task, region.module, TritonSchedule(persistent=2, stages=3))
    assert text.index("tl.load(arg2_ptr + column)") < text.index("for row in tl.range") < text.index("tl.load(arg0_ptr")
    assert "num_stages=3" in text and "programs(arg0, 24, 2)" in text


def test_softmax_online_takes_one_exponential_an_element_and_pass(regions):
    region = regions("masked_softmax")
    text = generate(region.task, region.module, TritonSchedule(structure="online", block=16, exp="fast"))
    assert text.count("for start in") == 2
    assert text.count("tl.exp(") == 3  # of the element, of the rescaling once a block, and of the output


def test_a_kernel_takes_along_the_functions_it_uses_and_those_they_need():
    names = [text.split("(")[0].rsplit(" ")[-1] for text in functions_for("y = exact_tanh(x)")]
    assert names == ["exact_exp", "exact_tanh"]
    assert functions_for("y = tl.exp(x)") == []


def test_a_file_imports_torch_and_triton_only_and_says_what_it_serves(regions):
    region = regions("rms_norm")
    dims = {"s0": Dim(value=24, free=True, min=0), "s1": Dim(value=128)}
    source = generate(region.task.model_copy(update={"dims": dims}), region.module, TritonSchedule())
    imported = {name.name for node in ast.parse(source).body if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"torch", "triton", "triton.language"}
    assert 'LANGUAGE = "triton"' in source and 'SERVES = {"s0": 24}' in source


def test_names_that_python_or_triton_reserve_are_changed(make, interpret):
    region = make(lambda a, b, c: a + b * c, [R(3, 5), R(3, 5), R(3, 5)])
    names = ("lambda", "launch", "triton")
    inputs = tuple(spec.model_copy(update={"name": n}) for spec, n in zip(region.task.inputs, names, strict=True))
    for node, name in zip((n for n in region.module.graph.nodes if n.op == "placeholder"), names, strict=True):
        node.name = name
    source = generate(region.task.model_copy(update={"inputs": inputs}), region.module, TritonSchedule())
    assert torch.equal(interpret(source, region.inputs, region.eager)[0], region.eager[0])


@pytest.mark.parametrize(
    "name, schedule",
    [
        ("residual_norm", TritonSchedule(warps=8, persistent=2, stages=2, divide="reciprocal")),
        ("cross_entropy", TritonSchedule(structure="online", block=32, exp="fast")),
        ("rotary", TritonSchedule(rows=8)),
    ],
)
def test_the_file_is_as_it_was_accepted(regions, name, schedule):
    """After a wanted change: `AUTOKERNEL_ACCEPT=1 pytest tests/generate`, and look at the diff."""
    region = regions(name)
    path, source = GOLDEN / f"triton_{name}.py.txt", generate(region.task, region.module, schedule)
    if os.environ.get("AUTOKERNEL_ACCEPT") == "1":
        path.write_text(source, encoding="utf-8")
    assert source == path.read_text(encoding="utf-8")
