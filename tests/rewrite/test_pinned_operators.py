"""The operators that run one attention backend: registered rightly, their strides as the caller says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from autokernel.rewrite.pinned import BACKENDS, native_stride, overload


def layouts(batch, heads, length, width):
    """The same shape contiguous, with heads inside, and as a part of a projection that holds more."""
    return [
        torch.randn(batch, heads, length, width),
        torch.randn(batch, length, heads, width).transpose(1, 2),
        torch.randn(batch, length, 3 * heads, width)[:, :, :heads].transpose(1, 2),
    ]


def stride_of(q, k, v):
    mode = torch._subclasses.FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (q, k, v)]
    with mode:
        return native_stride("flash", *fakes)


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("masked", [False, True])
def test_flash_on_the_cpu_passes_the_checks_for_operators(position, masked):
    q = layouts(2, 4, 9, 8)[position]
    mask = torch.rand(2, 1, 9, 9) > -1 if masked else None
    args = (q, q, q, mask, not masked, 0.4, False, list(stride_of(q, q, q)))
    opcheck(overload("flash"), args, test_utils=("test_schema", "test_faketensor"))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    length=st.integers(1, 9),
    width=st.sampled_from([4, 8, 20]),
    position=st.integers(0, 2),
    causal=st.booleans(),
    wanted=st.permutations(range(4)),
)
def test_the_output_has_the_strides_that_were_asked_for(batch, heads, length, width, position, causal, wanted):
    q = layouts(batch, heads, length, width)[position]
    stride = torch.empty([q.shape[d] for d in wanted]).permute([list(wanted).index(d) for d in range(4)]).stride()
    out = overload("flash")(q, q, q, None, causal, None, False, stride)
    assert out.stride() == stride
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, is_causal=causal))


@pytest.mark.parametrize("position", range(3))
def test_the_native_strides_cost_no_copy(position):
    q = layouts(2, 4, 9, 8)[position]
    expected = F.scaled_dot_product_attention(q, q, q)
    assert stride_of(q, q, q) == expected.stride()


def test_a_backend_that_a_device_lacks_is_not_run_there():
    q = torch.randn(1, 2, 4, 8)
    for name in set(BACKENDS["cuda"]) - set(BACKENDS["cpu"]):
        with pytest.raises(NotImplementedError):
            overload(name)(q, q, q, None, False, None, False, q.stride())


def test_an_unknown_backend_has_no_operator():
    with pytest.raises(KeyError, match="fastest"):
        overload("fastest")
