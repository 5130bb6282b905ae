"""Kernels put into models: same values, seen to run, and the original wherever they don't fit."""

import copy
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.install import Winner
from autokernel.install.backend import FallbackWarning, install


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = Norm(width)
        self.up = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Stack(nn.Module):
    def __init__(self, width=64, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    return Stack().eval()


@pytest.fixture(scope="module")
def winners(stack, winners_of):
    found = winners_of(stack, X)
    assert len(found) >= 2
    return found


@pytest.fixture
def installed(stack, winners):
    return install(stack, winners, "eager")


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_every_layer_runs_the_kernels_and_gives_the_model_s_values(stack, winners, installed):
    close(installed(X), stack(X))
    assert installed.replaced == {winner.task.id: winner.task.occurrences for winner in winners}
    assert installed.engaged(X) == installed.replaced
    assert sum(installed.replaced.values()) >= 6
    assert (installed.fallbacks, installed.skipped, installed.left) == (0, (), ())


@torch.no_grad()
def test_inductor_compiles_the_rest_and_the_kernels_still_run(stack, winners):
    installed = install(stack, winners, "default")
    close(installed(X), stack(X))
    assert installed.engaged(X) == {winner.task.id: winner.task.occurrences for winner in winners}


@torch.no_grad()
def test_a_subset_replaces_its_own_regions_only(stack, winners):
    alone = install(stack, winners[:1], "eager")
    close(alone(X), stack(X))
    assert alone.engaged(X) == {winners[0].task.id: winners[0].task.occurrences}


@torch.no_grad()
def test_a_buffer_that_the_model_changes_is_changed_once_a_call(winners_of):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(64)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.calls.add_(1)
            return self.layer(x)

    model = Counting().eval()
    installed = install(model, winners_of(model, X), "eager")
    installed(X)
    before = int(model.calls)
    close(installed(X), model.layer(X))
    installed(X)
    assert int(model.calls) == before + 2
    assert sum(installed.replaced.values()) >= 2


@torch.no_grad()
def test_new_weights_are_used_at_once(stack, winners):
    model = copy.deepcopy(stack)
    installed = install(model, winners, "eager")
    installed(X)
    model.layers[0].norm.weight.mul_(3)
    close(installed(X), model(X))
    assert sum(installed.engaged(X).values()) > 0


def test_with_gradients_on_the_original_runs_is_counted_and_said_once(stack, installed):
    with pytest.warns(FallbackWarning, match="gradients are on"):
        out = installed(X)
    assert out.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        installed(X)
    assert installed.fallbacks == 2


def test_inference_mode_runs_the_kernels(installed, stack):
    with torch.inference_mode():
        close(installed(X), stack(X))
        assert sum(installed.engaged(X).values()) >= 6


@torch.no_grad()
@pytest.mark.parametrize("change", [lambda x: x[:3], lambda x: torch.stack((x, x))])
def test_another_shape_runs_without_our_kernels_and_says_so(stack, installed, change):
    installed(X)
    with pytest.warns(FallbackWarning, match="no kernel fits"):
        close(installed(change(X)), stack(change(X)))
    assert sum(installed.engaged(change(X)).values()) == 0
    assert installed.engaged(X) == installed.replaced


@torch.no_grad()
def test_another_dtype_runs_without_our_kernels(stack, winners):
    half = copy.deepcopy(stack).bfloat16()
    installed = install(half, winners, "eager")
    with pytest.warns(FallbackWarning, match="no kernel fits"):
        out = installed(X.bfloat16())
    assert torch.equal(out, half(X.bfloat16()))


@torch.no_grad()
def test_a_misaligned_input_falls_back_and_is_counted(winners_of):
    def model(x, w):
        return F.silu(x) * w

    x, w = torch.randn(2, 33, 16), torch.randn(33, 16)
    found = winners_of(model, x[0], w)
    installed = install(model, found, "eager")
    close(installed(x[0], w), model(x[0], w))
    assert installed.fallbacks == 0
    shifted = torch.randn(33 * 16 + 1)[1:].view(33, 16)
    assert shifted.data_ptr() % 16
    close(installed(shifted, w), model(shifted, w))
    assert installed.fallbacks == 1
    assert sum(installed.engaged(shifted, w).values()) == 0


@torch.no_grad()
def test_an_input_changed_in_place_stays_changed(winners_of):
    def model(x):
        twice = x * 2
        x.copy_(twice)
        return F.silu(x) + 1

    found = winners_of(model, X.clone())
    installed = install(model, found, "eager")
    mine, theirs = X.clone(), X.clone()
    close(installed(mine), model(theirs))
    assert torch.equal(mine, theirs)
    assert sum(installed.replaced.values()) > 0


@torch.no_grad()
def test_an_input_that_is_changed_and_returned_is_still_that_input(winners_of):
    def model(x):
        y = F.silu(x) + 1
        return y, x.mul_(2)

    installed = install(model, winners_of(model, X.clone()), "eager")
    x = X.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = installed(x)
    assert found[1].data_ptr() == x.data_ptr()
    close(found[0], model(X.clone())[0])


@torch.no_grad()
def test_threads_may_share_it(stack, installed):
    installed(X)
    inputs = [torch.randn(8, 64) for _ in range(8)]
    results = [None] * len(inputs)

    def work(number):
        with torch.no_grad():
            for _ in range(5):
                results[number] = installed(inputs[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, found in zip(inputs, results, strict=True):
        close(found, stack(x))
    assert installed.fallbacks == 0


@torch.no_grad()
def test_a_graph_break_leaves_two_graphs_with_kernels_in_both(winners_of):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm(64)

        def forward(self, x):
            y = self.norm(x)
            torch._dynamo.graph_break()
            return self.norm(y + 1)

    model = Broken().eval()
    installed = install(model, winners_of(model, X), "eager")
    close(installed(X), model(X))
    assert sum(installed.replaced.values()) == 2
    assert sum(installed.engaged(X).values()) == 2


@torch.no_grad()
def test_a_refused_install_always_runs_the_original(stack, winners):
    installed = install(stack, winners, refused="it is Tuesday")
    with pytest.warns(FallbackWarning, match="it is Tuesday"):
        assert torch.equal(installed(X), stack(X))
    assert installed.fallbacks == 1


@torch.no_grad()
def test_without_winners_it_is_the_plain_model(stack):
    assert install(stack, [], "eager")._compiled is stack


def test_attributes_are_the_model_s_own(stack, installed):
    assert installed.layers is stack.layers
    with pytest.raises(AttributeError):
        _ = installed.nothing_like_this


@torch.no_grad()
def test_a_kernel_for_another_layout_of_the_same_fingerprint_is_left_out(stack, winners):
    task = winners[0].task
    moved = task.inputs[0].model_copy(update={"shape": (4, 64), "stride": (64, 1)})
    other = Winner(task.model_copy(update={"inputs": (moved, *task.inputs[1:])}), winners[0].source)
    installed = install(stack, [other], "eager")
    with pytest.warns(FallbackWarning, match="no kernel fits"):
        close(installed(X), stack(X))
    assert "shape" in installed.left[0]
    assert installed.replaced == {task.id: 0}
