"""What people's models do beyond a chain of operators: each is captured, or left as it is and named; never wrong.

Every model is installed with a kernel for each region that a generator covers, called on the inputs it was captured
with and on others, and compared with itself in eager.
"""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from autokernel.install.backend import FallbackWarning, install

WIDTH = 32


def x_of(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


class Scaled(nn.Module):
    """x ↦ silu(x·scale)·x + 1: one region with a weight."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width, generator=torch.Generator().manual_seed(5)) + 0.5)

    def forward(self, x):
        return F.silu(x * self.scale) * x + 1


def with_kernels(model, winners_of, *inputs):
    """The model with its kernels, and how many places have one."""
    model = model.eval()
    winners = winners_of(model, *copy.deepcopy(inputs))
    assert winners, "the model should have something for a generator"
    made = install(model, winners, "eager")
    with torch.no_grad():
        close(made(*copy.deepcopy(inputs)), model(*copy.deepcopy(inputs)))
        engaged = made.engaged(*copy.deepcopy(inputs))
    return made, sum(engaged.values())


def same(made, model, *inputs):
    """Outputs, and what is left of the inputs, as in eager."""
    ours, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        close(made(*ours), model(*theirs))
    close(ours, theirs)


def test_unseen_shapes_run_without_kernels_are_counted_and_the_limit_is_said_aloud(winners_of):
    model = Scaled()
    made, engaged = with_kernels(model, winners_of, x_of(4, WIDTH))
    assert engaged == 1
    with pytest.warns(FallbackWarning) as said:
        for rows in range(5, 25):
            with torch.no_grad():
                close(made(x_of(rows, WIDTH)), model(x_of(rows, WIDTH)))
    words = [str(one.message) for one in said]
    assert any("no kernel fits this call" in one for one in words)
    assert any("after its limit PyTorch runs further ones in eager" in one for one in words)
    same(made, model, x_of(4, WIDTH, seed=3))
    with torch.no_grad():
        assert sum(made.engaged(x_of(4, WIDTH)).values()) == 1


def test_in_place_operators_on_intermediates_and_on_parts_of_them(winners_of):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            y = self.scaled(x)
            y.mul_(2).add_(x)
            y[:, 0] = 0
            y[1:, 3:7].relu_()
            return y.clamp_(max=3)

    made, engaged = with_kernels(InPlace(), winners_of, x_of(6, WIDTH))
    assert engaged >= 1
    same(made, made.original, x_of(6, WIDTH, seed=1))


def test_an_input_and_a_buffer_that_are_written_in_part(winners_of):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()
            self.register_buffer("kept", torch.zeros(8, WIDTH))

        def forward(self, x, where):
            self.kept.index_copy_(0, where, self.scaled(x))
            x[0].neg_()
            return F.softmax(self.kept * 2, -1)

    model = Cache()
    where = torch.tensor([1, 5])
    twin = copy.deepcopy(model).eval()
    made = install(model.eval(), winners_of(model, x_of(2, WIDTH), where), "eager")
    for seed in range(4):
        ours, theirs = x_of(2, WIDTH, seed=seed), x_of(2, WIDTH, seed=seed)
        with torch.no_grad():
            close(made(ours, (where + seed) % 8), twin(theirs, (where + seed) % 8))
        close(ours, theirs)
        close(model.kept, twin.kept)
    assert made.fallbacks == 0 and sum(made.replaced.values()) >= 1


def test_a_static_key_value_cache_is_written_in_place_step_by_step(winners_of):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()

    def cache():
        return transformers.StaticCache(config=config, max_cache_len=16)

    def step(call, past, token, place):
        with torch.no_grad():
            return call(
                input_ids=torch.tensor([[token]]), past_key_values=past, cache_position=torch.tensor([place]),
                position_ids=torch.tensor([[place]]), use_cache=True, return_dict=False,
            )[0]  # fmt: skip

    class Step(nn.Module):
        """One token, with the cache among the model's own tensors."""

        def __init__(self):
            super().__init__()
            self.model, self.past = model, cache()

        def forward(self, token, place):
            return self.model(
                input_ids=token, past_key_values=self.past, cache_position=place, position_ids=place[None],
                use_cache=True, return_dict=False,
            )[0]  # fmt: skip

    made_from = Step().eval()
    with torch.no_grad():
        made_from(torch.tensor([[1]]), torch.tensor([0]))  # allocates the cache
    winners = winners_of(made_from, torch.tensor([[1]]), torch.tensor([0]))
    assert winners
    ours = Step().eval()
    made = install(ours, winners, "eager")
    theirs = cache()
    for place, token in enumerate((3, 9, 27, 17)):
        with torch.no_grad():
            found = made(torch.tensor([[token]]), torch.tensor([place]))
        close(found, step(model, theirs, token, place))
    with torch.no_grad():
        assert sum(made.engaged(torch.tensor([[5]]), torch.tensor([4])).values()) >= 8
    assert made.fallbacks == 0


def test_outputs_that_are_views_share_memory_as_in_eager(winners_of):
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            y = self.scaled(x)
            return y, y[:, :4], y.t(), x.view(-1), x

    model = Views()
    made, engaged = with_kernels(model, winners_of, x_of(4, WIDTH))
    assert engaged == 1
    x = x_of(4, WIDTH)
    with torch.no_grad():
        whole, part, turned, flat, same_x = made(x)
    assert same_x is x or same_x.data_ptr() == x.data_ptr()
    assert flat.data_ptr() == x.data_ptr()
    assert part.data_ptr() == whole.data_ptr() == turned.data_ptr()
    assert turned.stride() == (1, WIDTH)
    whole.zero_()
    assert not part.any() and not turned.any()


def test_tied_weights_stay_tied(winners_of):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16, WIDTH)
            self.head = nn.Linear(WIDTH, 16, bias=False)
            self.head.weight = self.embedding.weight
            self.scaled = Scaled()

        def forward(self, tokens):
            return F.softmax(self.head(self.scaled(self.embedding(tokens))), -1)

    tokens = torch.arange(8)[None]
    made, engaged = with_kernels(Tied(), winners_of, tokens)
    assert engaged >= 1
    with torch.no_grad():
        made.original.embedding.weight.mul_(1.5)
    same(made, made.original, tokens.flip(1))


def test_complex_numbers_are_left_alone(winners_of):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(6.0), torch.arange(1.0, 1 + WIDTH // 2))
            self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))
            self.scaled = Scaled()

        def forward(self, x):
            pairs = torch.view_as_complex(self.scaled(x).unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * self.turn).flatten(-2) * 0.5

    made, engaged = with_kernels(Rotary(), winners_of, x_of(6, WIDTH))
    assert engaged >= 1
    same(made, made.original, x_of(6, WIDTH, seed=1))


def test_under_autocast_the_model_runs_as_it_is_and_is_named(winners_of):
    class Projects(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.scaled = nn.Linear(WIDTH, WIDTH), Scaled()

        def forward(self, x):
            return self.scaled(self.up(x))

    model = Projects().eval()
    made, _ = with_kernels(model, winners_of, x_of(4, WIDTH))
    x = x_of(4, WIDTH, seed=1)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(FallbackWarning):
        ours, theirs = made(x), model(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert any("autocast" in one.reason for one in made.skipped)
    same(made, model, x)


def test_channels_last_stays_channels_last(winners_of):
    class Convolves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return F.relu(self.norm(self.conv(x))) * 2 + x

    torch.manual_seed(0)
    model = Convolves().eval().to(memory_format=torch.channels_last)
    x = x_of(2, 8, 6, 6).to(memory_format=torch.channels_last)
    made, engaged = with_kernels(model, winners_of, x)
    assert engaged >= 1
    with torch.no_grad():
        assert made(x).is_contiguous(memory_format=torch.channels_last)
    same(made, model, x.contiguous())


def test_dropout_draws_what_eager_draws(winners_of):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            return F.dropout(self.scaled(x), 0.5, training=True) * 3

    model = Drops().eval()
    made = install(model, winners_of(model, x_of(16, WIDTH)), "eager")
    for seed in range(3):
        with torch.no_grad():
            torch.manual_seed(seed)
            ours = made(x_of(16, WIDTH))
            torch.manual_seed(seed)
            theirs = model(x_of(16, WIDTH))
        assert torch.equal(ours == 0, theirs == 0)
        close(ours, theirs)
    assert sum(made.replaced.values()) >= 1


@pytest.mark.parametrize("masked", [False, True])
def test_the_encoder_layer_of_torch_with_its_fast_path(winners_of, masked):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True).eval()

    class Encodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scaled = layer, Scaled()

        def forward(self, x, mask=None):
            return self.scaled(self.layer(self.scaled(x), src_key_padding_mask=mask))

    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    inputs = (x_of(2, 5, WIDTH), mask) if masked else (x_of(2, 5, WIDTH),)
    made, engaged = with_kernels(Encodes(), winners_of, *inputs)
    assert engaged >= 2
    same(made, made.original, x_of(2, 5, WIDTH, seed=1), *inputs[1:])


def test_control_flow_that_depends_on_data_takes_the_branch_that_eager_takes(winners_of):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            y = self.scaled(x)
            if y.sum() > 0:
                return torch.tanh(y) * 2
            return torch.sigmoid(y) - 1

    made, engaged = with_kernels(Branches(), winners_of, x_of(4, WIDTH) + 2)
    assert engaged >= 1
    for seed in range(4):
        same(made, made.original, x_of(4, WIDTH, seed=seed) + 2)
        same(made, made.original, x_of(4, WIDTH, seed=seed) * 5 - 40)


def test_a_number_read_from_a_tensor_is_read_anew_in_every_call(winners_of):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            y = self.scaled(x)
            return F.gelu(y) * y.abs().max().item()

    made, engaged = with_kernels(Reads(), winners_of, x_of(4, WIDTH))
    assert engaged >= 1
    for seed in range(3):
        same(made, made.original, x_of(4, WIDTH, seed=seed) * (seed + 1))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_parts_run_right(winners_of, reentrant):
    class Checkpoints(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Scaled(), Scaled()

        def forward(self, x):
            y = checkpoint(self.first, x, use_reentrant=reentrant)
            return self.second(y) - x

    made, _ = with_kernels(Checkpoints(), winners_of, x_of(4, WIDTH))
    same(made, made.original, x_of(4, WIDTH, seed=1))


def test_four_hundred_tiny_regions(winners_of):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(400):
                x = torch.tanh(self.lin(x) * 0.5) + 0.1
            return x

    torch.manual_seed(0)
    made, engaged = with_kernels(Deep(), winners_of, x_of(2, 8))
    assert engaged == 400
    same(made, made.original, x_of(2, 8, seed=1))


def test_a_call_within_the_same_model_and_keyword_arguments(winners_of):
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x, *, bias=None, pair=()):
            y = self.scaled(x) if bias is None else self.scaled(x) + bias
            for one in pair:
                y = y * one
            return {"out": y, "both": [y, {"half": y / 2}]}

    model = Nested().eval()
    made = install(model, winners_of(model, x_of(4, WIDTH)), "eager")
    for words in ({}, {"bias": x_of(WIDTH)}, {"pair": (x_of(WIDTH), x_of(WIDTH, seed=2))}):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            ours, theirs = made(x_of(4, WIDTH), **words), model(x_of(4, WIDTH), **words)
        close(ours["out"], theirs["out"])
        close(ours["both"][1]["half"], theirs["both"][1]["half"])
