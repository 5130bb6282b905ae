"""Inductor is told of our operators before it meets them: what it would do at the first meeting grows exponentially."""

import pytest
import torch
from torch import nn

from autokernel.install.backend import install


class Residual(nn.Module):
    def forward(self, x):
        return x + torch.softmax(x * 2.0, -1)


def test_no_operator_of_ours_is_written_out_by_inductor(winners_of, monkeypatch):
    from torch._inductor import exc

    def refuse(*arguments, **options):
        raise AssertionError("an operator of ours was written out with all that it depends on")

    monkeypatch.setattr(exc.OperatorIssue, "operator_str", staticmethod(refuse))
    model, x = Residual(), torch.randn(8, 64)
    winners = winners_of(model, x)
    assert winners
    installed = install(model, winners, "default")
    with torch.no_grad():
        torch.testing.assert_close(installed(x), model(x))
    assert sum(installed.replaced.values()) == len(winners)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return x + torch.softmax(self.linear(x), -1)


@pytest.mark.parametrize("count", [2, 24])
def test_a_deep_model_is_compiled_like_a_shallow_one(winners_of, count):
    model, x = nn.Sequential(*(Layer() for _ in range(count))).eval(), torch.randn(4, 32)
    winners = winners_of(model, x)
    installed = install(model, winners, "default")
    with torch.no_grad():
        torch.testing.assert_close(installed(x), model(x))
    assert sum(installed.replaced.values()) == count
