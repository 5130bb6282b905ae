"""What a refusal says of the wrong elements: the faults that authors make, and silence where nothing stands out."""

import pytest
import torch

from autokernel.judge.diagnose import hint

torch.manual_seed(5)
REFERENCE = torch.randn(64, 200, dtype=torch.float64)


def said(got, reference=REFERENCE):
    over = ((got.double() - reference).abs() > 1e-6 * reference.abs() + 1e-9).logical_or(got.isnan())
    return hint(got, reference, over)


def tail_left_out():
    got = REFERENCE.clone()
    got[:, 192:] = torch.randn(64, 8)
    return got


def last_rows_left_out():
    got = REFERENCE.clone()
    got[60:] *= torch.rand(4, 200) + 2
    return got


def zeros_in_the_tail():
    got = REFERENCE.clone()
    got[:, 192:] = 0
    return got


def rounded(dtype):
    a, b = torch.randn(128, 512), torch.randn(512, 64)
    return (a.to(dtype).double() @ b.to(dtype).double()).float(), a.double() @ b.double()


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (tail_left_out(), ["last 8 of 200 places along dim 1"]),
        (last_rows_left_out(), ["last 4 of 64 places along dim 0"]),
        (zeros_in_the_tail(), ["last 8 of 200 places along dim 1", "zero was written"]),
        (REFERENCE * 1.05, ["about 1.05 × what was expected"]),
        (REFERENCE + 0.25, ["off by about 0.25"]),
        (REFERENCE.roll(1, 1), ["the place before it along dim 1"]),
        (REFERENCE.roll(-1, 0), ["the place after it along dim 0"]),
    ],
)
def test_a_usual_fault_is_named(got, words):
    sentence = said(got)
    for word in words:
        assert word in sentence
    assert sentence.endswith(".")


def test_arithmetic_in_bfloat16_is_named():
    got, reference = rounded(torch.bfloat16)
    assert "bfloat16" in said(got, reference)


def test_a_bfloat16_output_is_not_told_that_it_is_bfloat16():
    assert said((REFERENCE + torch.randn(64, 200) * 1e-3).bfloat16()) == ""


def test_nothing_is_said_where_nothing_stands_out():
    assert said(torch.randn(64, 200, dtype=torch.float64)) == ""


def test_one_wrong_element_makes_no_pattern():
    got = REFERENCE.clone()
    got[3, 7] += 1.0
    assert said(got) == ""


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1, 7)])
def test_small_outputs_are_no_trouble(shape):
    reference = torch.rand(shape, dtype=torch.float64) + 1
    assert isinstance(hint(reference + 1, reference, torch.ones(shape, dtype=torch.bool)), str)
