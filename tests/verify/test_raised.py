"""The float64 run of a model: nothing inside may fall back to a lower precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.verify.raised import raised, raised_model


class Casting(nn.Module):
    """Casts down inside, as norms written by hand do."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(64, 64)
        self.register_buffer("scale", torch.full((64,), 1.0 / 3.0))

    def forward(self, x):
        y = self.line(x).float()
        y = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scale
        y = F.softmax(y, -1, dtype=torch.float32)
        return y + torch.full((64,), 0.1, dtype=torch.float32)


def by_hand(model, x):
    line = model.line
    y = x.double() @ line.weight.double().T + line.bias.double()
    y = y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * model.scale.double()
    return torch.softmax(y, -1) + 0.1


def test_casts_inside_the_model_are_raised_too():
    torch.manual_seed(0)
    model, x = Casting().eval(), torch.randn(8, 64)
    higher = raised_model(model)
    with raised():
        found = higher(x.double())
    assert found.dtype == torch.float64
    # 1/3 in float32 is what the model holds, and 0.1 is the number it asks for
    assert (found - by_hand(model, x)).abs().max() < 1e-14
    with torch.no_grad():
        plain = higher(x.double())
    assert (plain.double() - by_hand(model, x)).abs().max() > 1e-9


def test_the_user_s_model_keeps_its_own_precision():
    model = Casting()
    raised_model(model)
    assert model.line.weight.dtype == torch.float32


def test_in_place_writes_reach_the_tensor_and_its_base():
    def model(x):
        y = x * 2
        y[:, 0].add_(1.0)
        y.mul_(torch.full((3,), 3.0))
        return y

    x = torch.tensor([[1.0, 2.0, 3.0]])
    with raised():
        assert model(x.double()).tolist() == [[9.0, 12.0, 18.0]]


def test_a_closure_s_low_precision_constants_rise_on_use():
    weight = torch.full((4, 4), 1.0 / 3.0)

    def model(x):
        return x @ weight

    with raised():
        found = model(torch.ones(1, 4, dtype=torch.float64))
    assert found.dtype == torch.float64


def test_integer_and_bool_tensors_stay_as_they_are():
    with raised():
        tokens = torch.arange(4)
        assert tokens.dtype == torch.int64
        assert (tokens > 2).dtype == torch.bool
        assert F.embedding(tokens, torch.ones(4, 2)).dtype == torch.float64


@pytest.mark.parametrize("dtype, unit", [(torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-9)])
def test_the_wobble_moves_outputs_by_about_the_rounding_of_the_dtype(dtype, unit):
    x = torch.linspace(1, 2, 1000, dtype=torch.float64)
    with raised():
        exact = x * 3
    with raised(unit, seed=1):
        moved = x * 3
    relative = ((moved - exact) / exact).abs()
    assert unit / 10 < relative.mean() < unit
    assert relative.max() <= unit
