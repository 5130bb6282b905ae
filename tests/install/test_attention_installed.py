"""Attention that stays in the graph is rewritten when asked for, with winners and without."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.install.backend import install
from autokernel.install.saved import apply_saved, load_saved, save_winners, saved_backend


class Attends(nn.Module):
    """Causal, by a mask that is written out, as compilers see it in transformers."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.projections(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        steps = torch.arange(length, device=x.device)
        mask = (steps[:, None] >= steps[None, :])[None, None]
        out = F.scaled_dot_product_attention(*parts.unbind(0), attn_mask=mask)
        return F.silu(out.transpose(1, 2).reshape(batch, length, width)) + 1


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Attends().eval()


@pytest.fixture(scope="module")
def x():
    return torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))


def ran(call, name):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return [event.name for event in profiler.events() if name in event.name]


@torch.no_grad()
def test_a_mask_that_is_written_out_is_folded_and_the_values_stay(model, x):
    installed = install(model, [], "eager", attention=True)
    torch.testing.assert_close(installed(x), model(x))
    assert any("causal" in words for words in installed.attention)
    assert not ran(lambda: installed(x), "aten::ge")
    assert installed.fallbacks == 0


@torch.no_grad()
def test_winners_and_rewritten_attention_go_together(model, x, winners_of):
    winners = winners_of(model, x)
    assert winners
    installed = install(model, winners, "eager", attention=True)
    torch.testing.assert_close(installed(x), model(x))
    assert installed.attention
    assert sum(installed.engaged(x).values()) >= 1


@torch.no_grad()
def test_it_is_left_alone_unless_asked_for(model, x, winners_of):
    installed = install(model, winners_of(model, x), "eager")
    installed(x)
    assert installed.attention == ()
    assert ran(lambda: installed(x), "aten::ge")


@torch.no_grad()
def test_inductor_compiles_the_rest(model, x):
    installed = install(model, [], "default", attention=True)
    torch.testing.assert_close(installed(x), model(x))
    assert installed.attention


@torch.no_grad()
def test_a_model_without_attention_is_said_to_run_without_ours():
    model, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    installed = install(model, [], "eager", attention=True)
    with pytest.warns(UserWarning, match="no kernel fits"):
        assert torch.equal(installed(x), model(x))
    assert installed.attention == ()


@torch.no_grad()
def test_what_a_run_kept_includes_its_attention(model, x, tmp_path):
    save_winners(tmp_path, [], "eager", attention=True)
    assert load_saved(tmp_path).attention
    applied = apply_saved(tmp_path, model)
    torch.testing.assert_close(applied(x), model(x))
    assert applied.attention
    compiled = torch.compile(model, backend=saved_backend(tmp_path))
    torch.testing.assert_close(compiled(x), model(x))
    assert not ran(lambda: compiled(x), "aten::ge")


@torch.no_grad()
def test_kernels_proved_on_a_gpu_are_refused_where_there_is_none(model, x, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    save_winners(tmp_path, [], "reduce-overhead", "cuda", attention=True)
    with pytest.warns(UserWarning, match="for cuda"):
        assert torch.equal(apply_saved(tmp_path, model)(x), model(x))
