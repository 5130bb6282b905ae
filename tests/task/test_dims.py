"""Free dims: found by running the reference at other sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autokernel.graph.lower import lower
from autokernel.records import Task, TensorSpec
from autokernel.task import LoadedTask
from autokernel.task.dims import at, discover
from autokernel.task.inputs import draw


def loaded(reference, *inputs, high=None):
    def call(*args):
        found = reference(*args)
        return found if isinstance(found, tuple) else (found,)

    def spec(name, value):
        dtype = str(value.dtype).removeprefix("torch.")
        index = not value.dtype.is_floating_point
        return TensorSpec(
            name=name,
            dtype=dtype,
            shape=tuple(value.shape),
            stride=tuple(value.stride()),
            role="index" if index else "activation",
            domain="index" if index else "real",
            high=high if index else None,
        )

    task = Task(
        id="01-t",
        title="t",
        fingerprint="f",
        shape_key="s",
        inputs=tuple(spec(f"x{i}", value) for i, value in enumerate(inputs)),
        outputs=tuple(spec(f"out{i}", value) for i, value in enumerate(call(*inputs))),
    )
    return LoadedTask(task, call, lower(call, inputs), None)


def free(task):
    return {dim.value for dim in task.dims.values() if dim.free}


def test_rows_and_columns_of_a_norm_are_free():
    task = discover(loaded(lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5), torch.randn(6, 32), torch.ones(32)))
    assert free(task) == {6, 32}
    assert task.inputs[0].dims == task.outputs[0].dims
    assert task.inputs[1].dims == (task.inputs[0].dims[1],)


def test_a_size_written_into_the_reference_is_fixed():
    task = discover(loaded(lambda x: F.layer_norm(x, (32,)), torch.randn(6, 32)))
    assert free(task) == {6}
    assert task.inputs[0].dims == (task.inputs[0].dims[0], None)


def test_a_view_with_written_sizes_fixes_what_it_names():
    task = discover(loaded(lambda x: x.view(6, 4, 8).softmax(-1), torch.randn(6, 32)))
    assert free(task) == set()
    assert task.inputs[0].dims is None


def test_an_extent_that_grows_with_another_is_not_renamed():
    task = discover(loaded(lambda x: torch.cat((x, x), -1), torch.randn(6, 10)))
    assert free(task) == {6}


def test_a_slice_to_a_written_end_is_found_out_by_a_larger_size():
    task = discover(loaded(lambda x: x[:6] * 2, torch.randn(6, 10)))
    assert free(task) == {10}


def test_equal_extents_move_together():
    task = discover(loaded(lambda a, b: a @ b, torch.randn(12, 12), torch.randn(12, 12)))
    assert free(task) == {12} and len(task.dims) == 1


def test_a_maximum_needs_at_least_one_element():
    task = discover(loaded(lambda x: x.amax(-1), torch.randn(6, 10)))
    by_value = {dim.value: dim for dim in task.dims.values()}
    assert by_value[6].min == 0 and by_value[10].min == 1


def test_an_index_bound_follows_its_dim():
    task = discover(loaded(lambda x, t: x.gather(1, t[:, None]), torch.randn(6, 10), torch.randint(10, (6,)), high=10))
    assert free(task) == {6, 10}
    name = next(name for name, dim in task.dims.items() if dim.value == 10)
    small = at(task, {name: 3})
    assert small.inputs[1].high == 3
    assert int(draw(small, 1)[1].max()) < 3
    assert task.dims[name].min == 1


def test_a_task_at_other_sizes_runs_in_its_reference():
    made = loaded(lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5), torch.randn(6, 32), torch.ones(32))
    task = discover(made)
    rows, columns = task.inputs[0].dims
    there = at(task, {rows: 5, columns: 7})
    (out,) = made.reference(*draw(there, 1))
    assert tuple(out.shape) == there.outputs[0].shape == (5, 7)
    assert there.outputs[0].stride == (7, 1)
    assert there.dims[rows].value == 5


def test_transposed_layouts_stay_transposed():
    task = discover(loaded(lambda x: x * 2, torch.randn(2, 5, 8).transpose(1, 2)))
    names = task.inputs[0].dims
    assert at(task, {names[1]: 3}).inputs[0].stride == (15, 1, 3)


def test_a_dim_that_is_not_free_cannot_be_changed():
    task = discover(loaded(lambda x: F.layer_norm(x, (32,)), torch.randn(6, 32)))
    fixed = next(name for name, dim in task.dims.items() if not dim.free)
    with pytest.raises(ValueError, match="no free dim"):
        at(task, {fixed: 3})
    moving = next(name for name, dim in task.dims.items() if dim.free)
    with pytest.raises(ValueError, match="outside"):
        at(task, {moving: -1})
    assert at(task, {fixed: 32}).inputs == task.inputs


def test_extents_of_one_stay_fixed():
    task = discover(loaded(lambda x: x + 1, torch.randn(1, 6)))
    assert free(task) == {6}
