"""Two thousand random calls of installed models: always what eager gives, whatever the call looks like."""

import contextlib
import copy
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.install.backend import FallbackWarning, install

CALLS = 500  # of each of the four models
WIDTH = 24
ROUNDING = {torch.float32: (2e-4, 2e-5), torch.float64: (1e-9, 1e-10), torch.bfloat16: (4e-2, 4e-2)}


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        wide = x.float() if x.dtype is torch.bfloat16 else x
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Gated(nn.Module):
    """Norm, a gated unit, a residual; a dict comes out."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        gate, value = self.up(self.norm(x)).chunk(2, -1)
        y = x + self.down(F.silu(gate) * value)
        return {"y": y, "most": y.amax(-1), "parts": (y[..., :4], y.mean(-1, keepdim=True))}


class Scores(nn.Module):
    """Softmax over masked scores, cross-entropy-like log sums."""

    def forward(self, x):
        scores = (x * 0.3).masked_fill(x > 2.5, float("-inf"))
        return F.softmax(scores, -1), torch.logsumexp(x, -1), F.gelu(x).sum(-1)


class Counts(nn.Module):
    """A buffer that every call changes, and an input that it changes in place."""

    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x):
        self.seen.mul_(0.5).add_(x.detach().float().reshape(-1, WIDTH).mean(0))
        y = torch.tanh(self.norm(x)) * 2
        x.clamp_(-1.5, 1.5)
        return y, x


class Branches(nn.Module):
    """Another path for large values, and one for large batches."""

    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x, scale=1.0):
        y = self.norm(x) * scale
        if x.shape[0] > 3:
            y = F.relu(y) + 1
        return torch.sigmoid(y) if x.detach().abs().sum() > 5000 else F.layer_norm(y, (WIDTH,)) * x


MODELS = {"gated": Gated, "scores": Scores, "counts": Counts, "branches": Branches}


@pytest.mark.parametrize("name", MODELS)
def test_random_calls_give_what_eager_gives(name, winners_of):
    torch.manual_seed(1)
    ours = MODELS[name]().eval()
    winners = winners_of(ours, torch.randn(2, 5, WIDTH))
    assert winners
    made = install(ours, winners, "eager")
    theirs = copy.deepcopy(ours)
    with torch.no_grad():
        made(torch.randn(2, 5, WIDTH))
        theirs.load_state_dict(ours.state_dict())
        assert sum(made.engaged(torch.randn(2, 5, WIDTH)).values()) >= 1
    theirs.load_state_dict(ours.state_dict())
    draw = random.Random(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for number in range(CALLS):
            one_call(draw, made, ours, theirs, number)
    replaced = sum(made.replaced.values())
    assert replaced >= 1 and made.fallbacks > 0


def one_call(draw, made, ours, theirs, number):
    if draw.random() < 0.03:  # new weights, in both
        state = {key: torch.rand_like(value) + 0.5 for key, value in ours.state_dict().items()}
        ours.load_state_dict(state)
        theirs.load_state_dict(state)
    dtype = draw.choices((torch.float32, torch.float64, torch.bfloat16), (8, 1, 1))[0]
    if dtype is not torch.float32:
        ours, theirs = ours.to(dtype), theirs.to(dtype)
    generator = torch.Generator().manual_seed(number)
    given = values(draw, generator).to(dtype)
    layout = draw.choice(("plain", "plain", "plain", "transposed", "sliced", "offset"))
    mode = draw.choice((torch.no_grad, torch.no_grad, torch.inference_mode, contextlib.nullcontext))
    words = {"scale": draw.choice((1.0, 0.5))} if isinstance(ours, Branches) and draw.random() < 0.3 else {}
    one, other = laid(given, layout), laid(given, layout)
    with mode():
        compare(made(one, **words), theirs(other, **words), dtype, (number, layout, given.shape, dtype, mode))
    compare(one, other, dtype, number)
    compare(dict(ours.named_buffers()), dict(theirs.named_buffers()), dtype, number)
    if dtype is not torch.float32:
        ours.to(torch.float32), theirs.to(torch.float32)
        theirs.load_state_dict(ours.state_dict())  # two roads through bfloat16 need not meet again


def values(draw, generator):
    shape = draw.choice(((2, 5), (2, 5), (2, 5), (2, 5), (1, 5), (4, 5), (2, 1), (0, 5), (3, 7)))
    x = torch.randn(*shape, WIDTH, generator=generator)
    kind = draw.random()
    if kind < 0.1:
        x = x * 100
    elif kind < 0.15 and x.numel():
        x.view(-1)[draw.randrange(x.numel())] = draw.choice((float("nan"), float("inf"), -float("inf")))
    elif kind < 0.2:
        x = torch.zeros_like(x)
    return x


def laid(x, layout):
    """The same values in another place or order."""
    if layout == "transposed":
        return x.clone().transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "sliced":
        wide = torch.zeros(*x.shape[:-1], WIDTH + 3, dtype=x.dtype)
        wide[..., :WIDTH] = x
        return wide[..., :WIDTH]
    if layout == "offset":
        flat = torch.zeros(x.numel() + 1, dtype=x.dtype)
        flat[1:] = x.reshape(-1)
        return flat[1:].view(x.shape)
    return x.clone()


def compare(ours, theirs, dtype, words):
    rtol, atol = ROUNDING[dtype]
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise AssertionError(f"call {words}: {error}") from error
