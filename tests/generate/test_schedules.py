"""The space of schedules, the loops they make, and the files that come out."""

import ast
import os
import re
from pathlib import Path

import pytest
import torch

from autokernel.errors import UnknownName
from autokernel.generate import Schedule, generate, schedules
from autokernel.generate.plan import plan

GOLDEN = Path(__file__).parent / "golden"


def code(source):
    """The C++ alone."""
    return re.search(r'SOURCE = r"""(.*?)"""', source, re.DOTALL).group(1)


R = torch.randn


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("rms_norm", [R(1, 256, 512), R(512)]),
        ("residual_norm", [R(1, 256, 512), R(1, 256, 512), R(512)]),
        ("rotary", [R(1, 256, 512), R(256, 64), R(256, 64)]),
        ("rotary_repeated", [R(1, 256, 256), R(256, 64), R(256, 64)]),
        ("repeated", [R(1, 256, 256)]),
        ("heads_together", [R(1, 16, 16, 64)]),
        ("masked_softmax", [R(1, 8, 256, 256), R(256, 256)]),
        ("swiglu", [R(1, 256, 1408), R(1, 256, 1408)]),
    ],
)
def test_a_region_of_a_small_transformer_has_at_least_24_texts(regions, make, name, inputs):
    region = make(regions(name).function, inputs)
    space = schedules(region.task, region.module, threads=2)
    texts = {code(generate(region.task, region.module, schedule)) for schedule in space}
    assert len(space) == len(set(space)) == len(texts) >= 24


def test_the_space_and_the_bytes_are_the_same_every_time(regions):
    first, second = regions("masked_softmax"), regions("masked_softmax")
    assert schedules(first.task, first.module, threads=2) == schedules(second.task, second.module, threads=2)
    schedule = Schedule(keep="buffer", lanes=16, rows=2)
    assert generate(first.task, first.module, schedule) == generate(second.task, second.module, schedule)


def test_one_thread_asks_for_no_threads(regions):
    region = regions("rms_norm")
    for schedule in schedules(region.task, region.module, threads=1):
        assert "omp parallel" not in generate(region.task, region.module, schedule)


def test_another_language_is_unknown(regions):
    region = regions("rms_norm")
    with pytest.raises(UnknownName, match="fortran"):
        schedules(region.task, region.module, language="fortran")


def test_rotate_half_is_two_loops_without_a_branch(regions):
    region = regions("rotary")
    text = code(generate(region.task, region.module, Schedule()))
    assert text.count("column < 32") == 2 and "?" not in text
    assert code(generate(region.task, region.module, Schedule(segments="together"))).count("column < 32") == 1


def test_the_residual_is_written_in_the_pass_that_squares_it(regions):
    region = regions("residual_norm")
    (nest,) = plan(region.module, region.task).nests
    assert [store.level for store in nest.stores] == [0, 1]
    text = code(generate(region.task, region.module, Schedule(keep="output")))
    assert text.count("arg0_row[column] + arg1_row[column]") == 1


def test_kept_exponentials_are_computed_once(regions):
    region = regions("masked_softmax")
    assert code(generate(region.task, region.module, Schedule())).count("= simd_exp(") == 2
    for keep in ("buffer", "output"):
        assert code(generate(region.task, region.module, Schedule(keep=keep))).count("= simd_exp(") == 1


def test_the_mean_of_a_cross_entropy_runs_over_a_buffer_of_row_values(regions):
    region = regions("cross_entropy")
    planned = plan(region.module, region.task)
    assert [nest.kind for nest in planned.nests] == ["row", "row"]
    assert [buffer.shape for buffer in planned.workspaces] == [(24,)]


def test_an_elementwise_region_is_one_flat_loop(regions):
    region = regions("swiglu")
    assert "column < 8448" in code(generate(region.task, region.module, Schedule()))


def test_free_extents_are_declared_as_served_at_the_tasks_own_size_only(regions):
    from autokernel.records import Dim

    region = regions("rms_norm")
    dims = {"s0": Dim(value=24, free=True, min=0), "s1": Dim(value=128)}
    source = generate(region.task.model_copy(update={"dims": dims}), region.module, Schedule())
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    served = [
        node.value for node in assigned if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SERVES"
    ]
    assert [ast.literal_eval(value) for value in served] == [{"s0": 24}]


def test_names_that_cpp_or_python_reserve_are_changed(make, run):
    def function(double, _lambda, launch):
        return double + _lambda * launch

    region = make(function, [torch.randn(3, 5), torch.randn(3, 5), torch.randn(3, 5)])
    names = ("double", "lambda", "launch")
    inputs = tuple(spec.model_copy(update={"name": n}) for spec, n in zip(region.task.inputs, names, strict=True))
    for node, name in zip((n for n in region.module.graph.nodes if n.op == "placeholder"), names, strict=True):
        node.name = name
    source = generate(region.task.model_copy(update={"inputs": inputs}), region.module, Schedule())
    assert torch.equal(run(source, region.inputs, region.eager)[0], region.eager[0])


@pytest.mark.parametrize(
    "name, schedule",
    [
        ("residual_norm", Schedule(keep="output", lanes=32)),
        ("masked_softmax", Schedule(keep="output", lanes=16, divide="reciprocal")),
        ("rotary", Schedule(segments="together")),
        ("cross_entropy", Schedule()),
    ],
)
def test_the_file_is_as_it_was_accepted(regions, name, schedule):
    """After a wanted change: `AUTOKERNEL_ACCEPT=1 pytest tests/generate/test_schedules.py`, and look at the diff."""
    region = regions(name)
    path, source = GOLDEN / f"{name}.py.txt", generate(region.task, region.module, schedule)
    if os.environ.get("AUTOKERNEL_ACCEPT") == "1":
        path.write_text(source, encoding="utf-8")
    assert source == path.read_text(encoding="utf-8")
