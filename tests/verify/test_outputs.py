"""Whole-model outputs: honest variants pass, small wrongs are seen, what can't be compared is never a pass."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.verify.observe import fresh, observe
from autokernel.verify.outputs import check_outputs
from autokernel.verify.tolerance import compare
from autokernel.workload import Case, Workload


class Small(nn.Module):
    def __init__(self, width=64, classes=10):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.last = nn.Linear(width, classes)

    def forward(self, x):
        y = F.gelu(self.first(x))
        y = (y.float() * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(y) * self.scale
        return self.last(y)


def workload(model, *args):
    return Workload(name="small", model=model, cases=(Case(args),), target="python")


def verdict(model, ours, *args, **others):
    return check_outputs(workload(model, *args), ours, {"eager": model, **others}, seed=3)


def test_the_model_itself_passes_on_its_own_and_on_fresh_inputs():
    model = Small().eval()
    check = verdict(model, model, torch.randn(32, 64))
    assert check.passed
    assert [row.name for row in check.rows] == ["output", "output (fresh inputs)"]
    assert all(0 < row.eager_max_error < 1e-5 for row in check.rows)


def test_another_order_of_summation_passes_and_one_part_in_thirty_thousand_does_not():
    model = Small().eval()

    def reordered(x, factor=1.0):
        y = F.gelu(x @ model.first.weight.T + model.first.bias)
        square = y.pow(2)
        mean = (square[..., ::2].sum(-1, keepdim=True) + square[..., 1::2].sum(-1, keepdim=True)) / square.shape[-1]
        return model.last(factor * y / (mean + 1e-5).sqrt() * model.scale)

    x = torch.randn(32, 64)
    assert verdict(model, reordered, x).passed
    wrong = verdict(model, lambda x: reordered(x, 1.00003), x)
    assert not wrong.passed
    assert all(row.worst > 1 and row.max_error > row.eager_max_error for row in wrong.rows)


def test_computing_in_bfloat16_is_refused():
    model = Small().eval()
    lower = copy.deepcopy(model).bfloat16()
    assert not verdict(model, lambda x: lower(x.bfloat16()).float(), torch.randn(32, 64)).passed


def test_the_largest_logit_is_compared_where_there_are_many():
    model = Small(classes=1500).eval()

    def permuted(x):
        return model(x).roll(1, -1)

    good, bad = verdict(model, model, torch.randn(4, 64)), verdict(model, permuted, torch.randn(4, 64))
    assert [row.top1_agreement for row in good.rows] == [1.0, 1.0]
    assert [row.top1_agreement for row in bad.rows] == [0.0, 0.0]
    assert not bad.passed


def test_nan_and_infinity_must_be_where_eager_has_them():
    class Special(nn.Module):
        def forward(self, x):
            return torch.cat((x.log(), x))

    model, x = Special(), torch.tensor([-1.0, 0.0, 1.0, 2.0])
    assert verdict(model, model, x).passed
    assert not verdict(model, lambda x: model(x).nan_to_num(0.0), x).passed
    assert not verdict(model, lambda x: -model(x).abs(), x).passed


def test_integer_outputs_must_be_the_same():
    def model(x):
        return {"best": x.argmax(-1), "value": x * 2}

    x = torch.randn(8, 16)
    assert verdict(model, model, x).passed
    check = verdict(model, lambda x: {"best": x.argmin(-1), "value": x * 2}, x)
    assert {row.name for row in check.rows if not row.passed} == {"output['best']", "output['best'] (fresh inputs)"}


def test_buffers_and_inputs_that_the_model_changes_are_compared_and_left_as_they_were():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x, cache):
            self.seen += x.mean(0)
            cache[0] = x[0]
            return x * 2

    model, x, cache = Counting(), torch.randn(8, 4), torch.zeros(2, 4)
    assert verdict(model, model, x, cache).passed
    assert not model.seen.any()
    assert not cache.any()

    def forgetful(x, cache):
        cache[0] = x[0]
        return x * 2

    check = verdict(model, forgetful, x, cache)
    assert not check.passed
    assert "buffer seen" in " ".join(check.notes)


def test_a_model_of_random_numbers_cannot_be_verified():
    model = nn.Dropout(0.5).train()
    check = verdict(model, model, torch.ones(64))
    assert not check.passed
    assert "change from call to call" in check.notes[0]


def test_a_missing_output_and_one_of_another_shape_are_refused():
    def model(x):
        return x * 2, x + 1

    x = torch.randn(4)
    assert not verdict(model, lambda x: (x * 2,), x).passed
    assert not verdict(model, lambda x: (x * 2, x[:2] + 1), x).passed
    assert not verdict(model, lambda x: (x * 2, (x + 1).double()), x).passed


def test_without_a_float64_run_outputs_are_compared_with_eager_s_and_a_note_says_so():
    class Picky(nn.Module):
        def forward(self, x):
            if x.dtype != torch.float32:
                raise RuntimeError("float32 only")
            return x * 3

    model, x = Picky(), torch.randn(16)
    check = verdict(model, model, x)
    assert check.passed
    assert "float32 only" in check.notes[0]
    assert not verdict(model, lambda x: model(x) * 1.01, x).passed


def test_fresh_inputs_keep_values_and_leave_structure_alone():
    mask = torch.full((4, 4), float("-inf")).triu(1)
    case = Case((torch.randint(0, 50, (2, 32)), torch.arange(32), mask), {"x": torch.randn(8, 8).t()[::2]})
    other = fresh(case, seed=1)
    assert not torch.equal(other.args[0], case.args[0])
    assert torch.equal(other.args[0].flatten().sort()[0], case.args[0].flatten().sort()[0])
    assert torch.equal(other.args[1], case.args[1])
    assert torch.equal(other.args[2], mask)
    assert not torch.equal(other.kwargs["x"], case.kwargs["x"])


def test_an_observation_is_a_copy():
    x = torch.ones(3)
    seen = observe(lambda x: x, None, Case((x,)))
    x.zero_()
    assert seen["output"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_judged_by_their_own_rounding(dtype):
    model = Small().eval().to(dtype)
    x = torch.randn(32, 64, dtype=dtype)
    check = verdict(model, model, x)
    assert check.passed
    assert all(row.eager_max_error > 1e-4 for row in check.rows)
    assert not verdict(model, lambda x: model(x) * 1.05, x).passed


def test_an_output_without_a_finite_value_is_named_as_not_compared():
    check = verdict(lambda x: x * torch.nan, lambda x: x * torch.nan, torch.randn(4, 4))
    assert check.uncompared == ["output", "output (fresh inputs)"]
    assert any("nothing was compared" in note for note in check.notes)
    finite, nothing = torch.ones(3), torch.full((3,), torch.nan)
    assert compare(finite, {"eager": finite}, nothing.double(), None).worst > 1


def test_a_view_of_a_buffer_is_seen_as_the_call_left_it():
    model = nn.BatchNorm1d(3)

    def call(x):
        return model.num_batches_tracked.add_(1)[None]

    assert int(observe(call, model, Case((torch.ones(2, 3),)))["output"]) == 1


def test_a_model_that_refuses_float64_with_any_error_is_compared_with_eager():
    def model(x):
        return {torch.float32: x * 2}[x.dtype]

    check = verdict(model, model, torch.randn(4, 4))
    assert check.passed
    assert any("no float64 run" in note for note in check.notes)
