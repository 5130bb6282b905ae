"""Pinned attention on a GPU: every backend against float32, its strides, its choice, and inside compiled graphs."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from autokernel.graph.capture import make_backend
from autokernel.rewrite import AttentionSite, TensorLayout, pinned
from autokernel.rewrite.attention import pin_attention
from autokernel.rewrite.masks import SDPA
from autokernel.rewrite.measure import choose_by_measurement, measure
from autokernel.rewrite.seen import traced_as

pytestmark = pytest.mark.gpu


def layout(tensor):
    return TensorLayout(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))


def tensors(heads, key_heads, length, width, inside, dtype):
    """q, k, v on the GPU; `inside`: the heads lie inside each position, as a projection leaves them."""
    generator = torch.Generator("cuda").manual_seed(0)

    def one(count):
        shape = (2, length, count, width) if inside else (2, count, length, width)
        made = torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
        return made.transpose(1, 2) if inside else made

    return one(heads), one(key_heads), one(key_heads)


def masks(length):
    position = torch.arange(length, device="cuda")
    window = (position[None] <= position[:, None]) & (position[None] > position[:, None] - 40)
    return {
        "none": None,
        "causal": None,
        "window": window[None, None].expand(2, 1, -1, -1),
        "bias": torch.where(window, 0.5, float("-inf")).to(torch.bfloat16),
    }


def test_a_trace_with_a_mask_is_told_from_one_without(traced):
    q, k, v = tensors(4, 4, 256, 64, True, torch.bfloat16)
    mask = torch.ones(2, 1, 256, 256, dtype=torch.bool, device="cuda")
    found = []
    for inputs in ((q, k, v), (q, k, v, mask)):
        module = traced(lambda *given: F.scaled_dot_product_attention(*given), *inputs)
        (node,) = module.graph.find_nodes(op="call_function", target=SDPA)
        found.append(traced_as(node))
    assert found[0] in ("flash", "cudnn", "efficient")
    assert found[1] in ("cudnn", "efficient", "unfused"), "flash attention takes no mask"


def expected(q, k, v, mask, causal):
    wide = [t.repeat_interleave(q.shape[1] // t.shape[1], dim=1).float() for t in (q, k, v)]
    mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*wide, attn_mask=mask, is_causal=causal)


def site_of(q, k, v, mask, causal):
    kind = "given" if mask is not None else "causal" if causal else "none"
    given = None if mask is None else layout(mask)
    return AttentionSite(layout(q), layout(k), layout(v), "cuda", kind, given, gqa=q.shape[1] != k.shape[1])


def stride_of(name, q, k, v):
    mode = torch._subclasses.FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (q, k, v)]
    with mode:
        return pinned.native_stride(name, *fakes)


@pytest.mark.parametrize("inside", [False, True], ids=["heads first", "heads inside"])
@pytest.mark.parametrize("key_heads", [8, 2])
@pytest.mark.parametrize("kind", ["none", "causal", "window", "bias"])
def test_each_backend_that_works_agrees_with_float32(kind, key_heads, inside):
    q, k, v = tensors(8, key_heads, 192, 64, inside, torch.bfloat16)
    mask, causal = masks(192)[kind], kind == "causal"
    measured = measure(site_of(q, k, v, mask, causal))
    working = set(measured.seconds) - {"default"}
    if mask is None:
        assert {"flash", "cudnn", "efficient"} <= working if key_heads == 8 else "flash" in working, measured.refused
    elif key_heads == 8:
        assert working, measured.refused
    for name in working:
        out = pinned.overload(name)(q, k, v, mask, causal, None, key_heads != 8, stride_of(name, q, k, v))
        torch.testing.assert_close(out.float(), expected(q, k, v, mask, causal), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("inside", [False, True], ids=["heads first", "heads inside"])
@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient"])
def test_a_backend_writes_in_the_strides_its_fake_promises(name, inside):
    q, k, v = tensors(4, 4, 128, 64, inside, torch.float16)
    promised = stride_of(name, q, k, v)
    direct = pinned._direct(name, "cuda")(q, k, v, True, None)
    assert direct.stride() == promised, "each call would pay for a copy"
    assert pinned.overload(name)(q, k, v, None, True, None, False, promised).stride() == promised


@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient"])
def test_an_operator_can_be_replayed_from_a_cuda_graph(name):
    q, k, v = tensors(4, 4, 128, 64, True, torch.bfloat16)
    op, stride = pinned.overload(name), stride_of(name, q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        op(q, k, v, None, True, None, False, stride)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(q, k, v, None, True, None, False, stride)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(out.float(), expected(q, k, v, None, True), rtol=2e-2, atol=2e-2)


def test_float32_has_the_efficient_kernel_only():
    q, k, v = tensors(4, 4, 64, 64, True, torch.float32)
    site = site_of(q, k, v, None, False)
    assert set(measure(site).seconds) == {"efficient", "default"}, measure(site).refused
    assert choose_by_measurement(site) == "efficient"


def test_a_width_that_needs_padding_is_never_given_to_a_kernel_that_does_not_pad():
    q, k, v = tensors(4, 4, 64, 20, True, torch.bfloat16)
    measured = measure(site_of(q, k, v, None, False))
    assert {"flash", "cudnn"} <= set(measured.refused)


def test_a_choice_is_made_in_time_and_leaves_the_random_state():
    q, k, v = tensors(16, 16, 1024, 64, True, torch.bfloat16)
    measure(site_of(*tensors(1, 1, 64, 64, True, torch.bfloat16), None, True))  # libraries load once a process
    before = torch.cuda.get_rng_state()
    begin = time.perf_counter()
    assert choose_by_measurement(site_of(q, k, v, None, True)) in ("flash", "cudnn", "efficient")
    assert time.perf_counter() - begin < 2.0
    assert torch.equal(torch.cuda.get_rng_state(), before)


class Attention(nn.Module):
    """Grouped-query attention with the mask and the repeated heads that tracing a library's model leaves."""

    def __init__(self, width=256, heads=4, key_heads=2):
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, width // heads * key_heads) for _ in range(2))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (p(x).view(batch, length, -1, width // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
        repeats = self.heads // self.key_heads
        k, v = (
            t[:, :, None].expand(batch, self.key_heads, repeats, length, -1).reshape(batch, self.heads, length, -1)
            for t in (k, v)
        )
        position = torch.arange(length, device=x.device)
        mask = (position[None, :] <= position[:, None])[None, None].expand(batch, 1, -1, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.o(y.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.parametrize("patches", [{}, {"triton.cudagraphs": True}], ids=["default", "reduce-overhead"])
@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient", None])
def test_a_compiled_model_computes_the_same(backend, patches):
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx

    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention()).cuda().to(torch.bfloat16).eval()
    seen = []

    def choose(site):
        return None if backend == "efficient" and site.gqa else backend

    def handle(captured, inputs):
        seen.append(pin_attention(captured.module, choose if backend is not None else None))
        return seen[-1].module

    def compile_rest(module, inputs):
        return compile_fx(module, list(inputs), config_patches=patches)

    torch._dynamo.reset()
    counters.clear()
    skipped = []
    compiled = torch.compile(model, backend=make_backend(handle, compile_rest, skipped=skipped), dynamic=False)
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(2, 128, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
            x = x.to(torch.bfloat16)
            torch.testing.assert_close(compiled(x).clone(), model(x), rtol=3e-2, atol=3e-2)
    torch._dynamo.reset()
    (done,) = seen
    assert not skipped and done.count == 2 and [finding.became for finding in done.findings] == ["causal", "causal"]
    assert counters["inductor"]["cudagraph_skips"] == 0
