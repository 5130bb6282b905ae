"""Shared buffers: the same tensors on both sides, and every kind of damage seen."""

import mmap
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.judge.buffers import CANARY_BYTES, BufferSet, Layout, map_layout
from autokernel.records import TensorSpec

DTYPES = ["float32", "float64", "bfloat16", "float16", "bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES += ["complex64", "complex128", "float8_e4m3fn"]


def spec(shape, dtype="float32", stride=None, offset=0, name="out"):
    stride = torch.empty(shape, device="meta").stride() if stride is None else stride
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape), stride=tuple(stride), offset=offset)


def numbers(shape, dtype):
    return (torch.randn(shape) * 50).to(getattr(torch, dtype))


def same_bits(one, other):
    def bits(tensor):
        dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten()
        return dense.view(torch.uint8).tolist() if dense.numel() else []

    return bits(one) == bits(other)


@st.composite
def strided_tensors(draw):
    """Tensors with permuted, stepped and expanded dims, offsets and misaligned bases."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    base = numbers([n * 2 + 1 for n in shape], dtype)
    for dim, size in enumerate(shape):
        step, start = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        base = base[(slice(None),) * dim + (slice(start, start + size * step, step),)]
    base = base.permute(draw(st.permutations(range(base.dim()))))
    if draw(st.booleans()):
        base = base.unsqueeze(0).expand(3, *base.shape)
    return base


@settings(max_examples=60, deadline=None)
@given(st.lists(strided_tensors(), min_size=1, max_size=3))
def test_inputs_keep_dtype_shape_strides_offset_alignment_and_bits(tensors):
    made = BufferSet.create(tensors, [spec((2,))])
    child_inputs, _ = map_layout(made.fd, Layout.from_json(made.layout.to_json()))
    for original, parent, child in zip(tensors, made.inputs, child_inputs, strict=True):
        for view in (parent, child):
            assert (view.dtype, view.shape, view.stride()) == (original.dtype, original.shape, original.stride())
            assert view.storage_offset() == original.storage_offset()
            assert same_bits(view, original)
            if original.numel():
                assert view.data_ptr() % 64 == original.data_ptr() % 64
    assert made.inputs_changed() == [] and made.canaries_intact() == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride,offset", [((4, 1), 0), ((1, 3), 0), ((6, 1), 3)])
def test_exactly_the_elements_not_written_are_named(dtype, stride, offset):
    made = BufferSet.create([], [spec((3, 4), dtype, stride, offset)])
    out = made.outputs[0]
    for pattern in (0, 1):
        made.poison(pattern)
        assert made.unwritten()[0].all()
        out[:, :3] = numbers((3, 3), dtype)
        out[1, 0] = 0
        mask = made.unwritten()[0]
        assert mask[:, 3].all() and not mask[1, 0]
        if out.element_size() > 1:
            assert not mask[:, :3].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_two_patterns_differ_in_every_element(dtype):
    made = BufferSet.create([], [spec((5,), dtype)])
    made.poison(0)
    kept = made.outputs[0].clone()
    made.poison(1)
    made.outputs[0].view(torch.uint8).copy_(kept.view(torch.uint8))
    assert not made.unwritten()[0].any()


def test_nan_written_by_a_kernel_is_not_poison():
    made = BufferSet.create([], [spec((4,))])
    made.outputs[0].fill_(float("nan"))
    assert not made.unwritten()[0].any()


def test_one_byte_past_either_end_is_seen_and_named():
    made = BufferSet.create([torch.randn(3)], [spec((5,), name="y")])
    whole = mmap.mmap(made.fd, made.layout.size)
    slot = made.layout.outputs[0]
    for place, name in ((slot.base + slot.bytes, "after y"), (slot.base - 1, "before y")):
        whole[place] ^= 1
        assert made.canaries_intact() == [name]
        assert made.canaries_intact() == [], "canaries are mended once they have been reported"
    whole[made.layout.inputs[0].base - CANARY_BYTES] ^= 128
    assert made.canaries_intact() == ["before input 0"]


def test_a_changed_input_is_named_even_when_equal_in_value():
    made = BufferSet.create([torch.zeros(4), torch.ones(4)], [spec((1,))])
    made.inputs[0][2] = -0.0
    assert made.inputs_changed() == [0]
    made.rewrite([torch.zeros(4), torch.ones(4)])
    assert made.inputs_changed() == []


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**40), st.sampled_from(DTYPES))
def test_rolling_moves_every_element_and_nothing_else(count, shift, dtype):
    x, index = numbers((count,), dtype), torch.arange(5)
    made = BufferSet.create([x, index], [spec((1,))])
    made.roll([True, False], shift)
    if dtype == "float8_e4m3fn":
        x, rolled = x.view(torch.uint8), made.inputs[0].view(torch.uint8)
    else:
        rolled = made.inputs[0]
    assert same_bits(rolled, torch.roll(x, shift % count))
    assert torch.equal(made.inputs[1], index)
    assert made.inputs_changed() == []
    made.inputs[0].view(torch.uint8)[0] ^= 1
    assert made.inputs_changed() == [0]


def test_inputs_of_another_form_are_refused():
    made = BufferSet.create([torch.zeros(4)], [spec((1,))])
    for wrong in ([], [torch.zeros(5)], [torch.zeros(4, dtype=torch.int32)], [torch.zeros(8)[::2]]):
        with pytest.raises(ValueError):
            made.rewrite(wrong)
    with pytest.raises(ValueError, match="cpu"):
        BufferSet.create([torch.zeros(4, device="meta")], [])


def test_empty_and_scalar_tensors_have_their_place():
    made = BufferSet.create([torch.empty(0, 3), torch.tensor(2.5)], [spec((0, 2)), spec(())])
    assert made.inputs[0].shape == (0, 3) and made.inputs[1].item() == 2.5
    assert made.outputs[0].shape == (0, 2) and made.unwritten()[1].item() is True
    assert made.inputs_changed() == [] and made.canaries_intact() == []


def test_a_set_cannot_be_resized_by_who_else_holds_its_descriptor():
    """A file cut short would end the parent with SIGBUS at its next look."""
    made = BufferSet.create([torch.ones(8)], [])
    other = os.dup(made.fd)
    try:
        for size in (0, made.layout.size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(other, size)
    finally:
        os.close(other)
    assert made.inputs_changed() == []
