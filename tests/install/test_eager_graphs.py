"""CUDA graphs without a compiler, where there is no CUDA: refused with a reason, and the model still runs."""

import pytest
import torch
from torch import nn

from autokernel.errors import NotGraphable
from autokernel.install.backend import FallbackWarning, install
from autokernel.install.compiling import baseline
from autokernel.install.graphs import EagerGraphs


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((torch.ones(2, 4),), "an input is on cpu"),
        ((), "no tensor among its inputs"),
        ((3,), "no tensor among its inputs"),
    ],
)
def test_what_can_t_be_a_graph_is_refused_with_a_reason(arguments, reason):
    with pytest.raises(NotGraphable, match=reason):
        EagerGraphs(lambda *values: values)(*arguments)


def test_the_baseline_is_refused_on_the_cpu():
    model = nn.Linear(4, 4)
    with pytest.raises(NotGraphable), torch.no_grad():
        baseline(model, "eager-graphs")(torch.ones(2, 4))


@torch.no_grad()
def test_a_user_s_call_that_can_t_be_a_graph_runs_the_model_and_says_why():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    installed = install(model, [], "eager-graphs")
    with pytest.warns(FallbackWarning, match="an input is on cpu"):
        assert torch.equal(installed(x), model(x))
    assert torch.equal(installed(x), model(x))
    assert installed.fallbacks == 2


def test_with_gradients_on_the_model_itself_runs():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    installed = install(model, [], "eager-graphs")
    with pytest.warns(FallbackWarning, match="gradients are on"):
        assert installed(x).requires_grad
