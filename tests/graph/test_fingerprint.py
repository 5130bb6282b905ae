"""Identity of regions: equal where a kernel can be shared, different where it can't."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.graph.fingerprint import fingerprint, stride_class
from autokernel.graph.lower import lower


def norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def identity(function, *inputs):
    return fingerprint(lower(function, inputs))


def test_the_same_region_in_every_layer_is_one_task(llama):
    groups = {(region.fingerprint, region.shape_key) for region in llama.graphs[0].regions}
    assert len(groups) == 17
    norms = [region for region in llama.graphs[0].regions if region.title == "add → rms norm"]
    assert len({(region.fingerprint, region.shape_key) for region in norms[:-1]}) == 1
    assert norms[-1].fingerprint != norms[0].fingerprint  # one output


def test_linears_of_different_sizes_share_a_fingerprint_but_not_a_shape_key(llama):
    linears = [region for region in llama.graphs[0].regions if region.title == "linear"]
    assert len({region.fingerprint for region in linears}) == 1
    assert len({region.shape_key for region in linears}) == 5


def test_names_and_spelling_do_not_matter():
    def written(activation, scale):
        variance = activation.pow(2).mean(-1, keepdim=True)
        return activation * torch.rsqrt(variance + 1e-5) * scale

    x, w = torch.randn(3, 8), torch.randn(8)
    assert identity(norm, x, w) == identity(written, x, w)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
        lambda x, w: F.rms_norm(x, (x.shape[-1],), None, 1e-5) + w,
        lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5).double(),
        lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5).relu(),
        lambda x, w: F.layer_norm(x, (x.shape[-1],), w, eps=1e-5),
    ],
)
def test_another_computation_is_another_fingerprint(other):
    x, w = torch.randn(3, 8), torch.randn(8)
    assert identity(norm, x, w)[0] != identity(other, x, w)[0]


def test_dtype_rank_and_layout_are_part_of_the_fingerprint():
    x, w = torch.randn(4, 8), torch.randn(8)
    base = identity(norm, x, w)[0]
    assert identity(norm, x.double(), w.double())[0] != base
    assert identity(norm, x[None], w)[0] != base
    assert identity(norm, torch.randn(8, 4).t(), w)[0] != base
    assert identity(norm, x, w)[0] == base


sizes = st.integers(2, 40)


@settings(max_examples=15, deadline=None)
@given(rows=sizes, columns=sizes, other_rows=sizes, other_columns=sizes)
def test_sizes_stand_only_in_the_shape_key(rows, columns, other_rows, other_columns):
    def rope(x, cos):
        half = x.shape[-1] // 2
        return x.view(1, *x.shape) * cos[: x.shape[0]] + torch.cat((-x[:, half:], x[:, :half]), -1)

    def both(rows, columns):
        return identity(rope, torch.randn(rows, 2 * columns), torch.randn(rows + 3, 2 * columns))

    one, other = both(rows, columns), both(other_rows, other_columns)
    assert one[0] == other[0]
    assert (one[1] == other[1]) == ((rows, columns) == (other_rows, other_columns))


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((4, 8), (1, 4), "1,2ud"),
        ((4, 8), (16, 1), "2,1up"),
        ((4, 8), (16, 2), "2,1sp"),
        ((4, 8), (0, 1), "0,1up"),
        ((1, 8), (99, 1), "-,1ud"),
    ],
)
def test_stride_classes(shape, stride, expected):
    assert stride_class(shape, stride) == expected


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
def test_stride_class_forgets_sizes_but_not_order(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.empty([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(len(shape))])
    larger = torch.empty([shape[axis] + 2 for axis in order]).permute([order.index(axis) for axis in range(len(shape))])
    if all(size > 1 for size in shape):
        assert stride_class(tensor.shape, tensor.stride()) == stride_class(larger.shape, larger.stride())
