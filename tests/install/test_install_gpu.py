"""Triton winners put into models on a GPU: seen to run there, with CUDA graphs and without, and right."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.graph.capture import capture
from autokernel.install import Winner
from autokernel.install.backend import FallbackWarning, install
from autokernel.install.compiling import baseline
from autokernel.install.saved import apply_saved, save_winners, saved_backend
from autokernel.task.folder import group, load, write

pytestmark = pytest.mark.gpu

KERNEL = """
import triton
import triton.language as tl

LANGUAGE = "triton"


@triton.jit
def {name}(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside).to(tl.float32)
    tl.store(out + at, value / (1 + tl.exp(-value)) * 1.5 + 1, mask=inside)


def launch(x, out):
    n = x.numel()
    {name}[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
"""


class Stack(nn.Module):
    """Four layers with one region each that has one input: silu(x) · 1.5 + 1."""

    def __init__(self, width=256):
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        for line in self.lines:
            x = F.silu(line(x)) * 1.5 + 1
        return x


def triton_winners(model, x, directory, name="scaled_silu_kernel"):
    found = []
    with torch.no_grad():
        groups = group(capture(model, (x,)))
    for number, regions in enumerate(groups):
        if regions[0].kind != "pointwise":
            continue
        task = load(directory / write(directory, number, regions).id).task
        assert (task.device_class, len(task.inputs), len(task.outputs)) == ("cuda", 1, 1)
        found.append(Winner(task, KERNEL.format(name=name), 1.5))
    return found


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    return Stack().eval().to("cuda", torch.bfloat16)


@pytest.fixture(scope="module")
def x():
    return torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def winners(stack, x, tmp_path_factory):
    found = triton_winners(stack, x, tmp_path_factory.mktemp("tasks"))
    assert sum(winner.task.occurrences for winner in found) == 4
    return found


def close(one, other):
    torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


MODES = ["eager", "default", "reduce-overhead", "eager-graphs"]


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_every_place_runs_the_kernel_and_gives_the_model_s_values(stack, x, winners, mode):
    installed = install(stack, winners, mode)
    for seed in range(6):  # the first calls warm up and record; the later ones replay
        values = torch.randn(x.shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()
        close(installed(values), stack(values))
    assert sum(installed.replaced.values()) == 4
    assert installed.engaged(x) == installed.replaced
    assert (installed.fallbacks, installed.skipped, installed.left) == (0, (), ())


@torch.no_grad()
def test_replays_of_a_graph_call_no_operator_and_keep_the_weights_where_they_are(stack, x, winners):
    installed = install(stack, winners, "reduce-overhead")
    for _ in range(4):
        installed(x)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        installed(x)
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events()]
    assert any("GraphLaunch" in name for name in names)
    assert not any(name.startswith("autokernel::") for name in names)
    # the graphs' own copies of inputs: x, and no weight
    manager = torch._inductor.cudagraph_trees.get_manager(x.device.index, create_if_none_exists=False)
    newest = [node for roots in manager.roots.values() for node in roots][-1]
    assert len(newest.static_input_idxs) == len(list(stack.parameters()))


@torch.no_grad()
def test_new_weights_are_used_by_replays(stack, x, winners):
    model = copy.deepcopy(stack)
    for mode in ("reduce-overhead", "eager-graphs"):
        installed = install(model, winners, mode)
        for _ in range(4):
            installed(x)
        model.lines[0].bias.add_(1)
        close(installed(x), model(x))
        model.lines[0].weight = nn.Parameter(model.lines[0].weight * 2, requires_grad=False)
        close(installed(x), model(x))


@torch.no_grad()
def test_another_dtype_and_another_shape_run_without_the_kernel(stack, x, winners):
    wide = copy.deepcopy(stack).float()
    installed = install(wide, winners, "eager")
    with pytest.warns(FallbackWarning, match="no kernel fits"):
        close(installed(x.float()), wide(x.float()))
    installed = install(stack, winners, "reduce-overhead")
    with pytest.warns(FallbackWarning, match="no kernel fits"):
        close(installed(x[:7]), stack(x[:7]))
    for _ in range(4):
        close(installed(x), stack(x))
    assert installed.engaged(x) == installed.replaced


@torch.no_grad()
def test_a_misaligned_input_falls_back_and_is_counted(tmp_path):
    def model(x):
        return F.silu(x) * 1.5 + 1

    x = torch.randn(33 * 16 + 1, device="cuda")
    installed = install(model, triton_winners(model, x[:-1], tmp_path), "eager")
    close(installed(x[:-1]), model(x[:-1]))
    assert installed.fallbacks == 0
    close(installed(x[1:]), model(x[1:]))
    assert installed.fallbacks == 1
    assert sum(installed.engaged(x[1:]).values()) == 0


@torch.no_grad()
def test_two_winners_of_one_kernel_name_are_told_apart_by_their_places(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(64, 128)

        def forward(self, x):
            return F.silu(self.line(F.silu(x) * 1.5 + 1)) * 1.5 + 1

    model, x = Two().eval().cuda(), torch.randn(32, 64, device="cuda")
    winners = triton_winners(model, x, tmp_path)
    assert len(winners) == 2
    installed = install(model, winners, "reduce-overhead")
    installed(x)
    assert installed.engaged(x) == {winner.task.id: 1 for winner in winners}


@torch.no_grad()
def test_eager_as_a_cuda_graph_follows_its_inputs_and_keeps_outputs_for_users(stack, x):
    graphs = install(stack, [], "eager-graphs")
    first = graphs(x)
    second = graphs(-x)
    close(first, stack(x))
    close(second, stack(-x))
    measured = baseline(stack, "eager-graphs")
    assert measured(x).data_ptr() == measured(-x).data_ptr()
    assert graphs(x[:5]).shape == (5, 256)


@torch.no_grad()
def test_what_cuda_can_t_capture_runs_as_it_is():
    def model(x):
        return x * x.sum().item()

    x = torch.randn(8, device="cuda")
    installed = install(model, [], "eager-graphs")
    with pytest.warns(FallbackWarning, match="reads values back"):
        close(installed(x), model(x))
    close(torch.ones(3, device="cuda") + 1, torch.full((3,), 2.0, device="cuda"))  # the device is as usable as before

    def changes(x):
        return x.add_(1)

    installed, x = install(changes, [], "eager-graphs"), torch.zeros(3, device="cuda")
    with pytest.warns(FallbackWarning, match="changes its inputs"):
        installed(x)
    assert x.tolist() == [1, 1, 1]


@torch.no_grad()
@pytest.mark.parametrize("mode", ["eager", "reduce-overhead"])
def test_what_a_run_kept_runs_again(stack, x, winners, tmp_path, mode):
    save_winners(tmp_path, winners, mode, "cuda")
    applied = apply_saved(tmp_path, stack)
    close(applied(x), stack(x))
    assert applied.engaged(x) == {winner.task.id: winner.task.occurrences for winner in winners}
    close(torch.compile(stack, backend=saved_backend(tmp_path))(x), stack(x))
    on_cpu = copy.deepcopy(stack).cpu()
    with pytest.warns(FallbackWarning, match="the model is on cpu"):
        apply_saved(tmp_path, on_cpu)(x.cpu())


class Attends(nn.Module):
    """Causal, by a mask that is written out, as compilers see it in transformers."""

    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.projections(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        steps = torch.arange(length, device=x.device)
        mask = (steps[:, None] >= steps[None, :])[None, None]
        out = F.scaled_dot_product_attention(*parts.unbind(0), attn_mask=mask)
        return out.transpose(1, 2).reshape(batch, length, width)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
def test_attention_is_rewritten_and_pinned(mode):
    torch.manual_seed(0)
    model = Attends().eval().to("cuda", torch.bfloat16)
    x = torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16)
    installed = install(model, [], mode, attention=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(4):
            close(installed(x), model(x))
            x = x.roll(1, 1).clone()
    assert any("causal" in words for words in installed.attention)
    assert installed.fallbacks == 0
