"""Proofs on a GPU: every baseline, the clock that waits, float64 on the device, and a Triton winner seen to run."""

import dataclasses
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.graph.capture import capture
from autokernel.install import Winner
from autokernel.install.compiling import BASELINES
from autokernel.task.folder import group, load, write
from autokernel.verify.device import device_class, wait_for
from autokernel.verify.outputs import check_outputs
from autokernel.verify.raised import raised, raised_model
from autokernel.verify.speed import measure
from autokernel.verify.verify import keeps_attention, kept, mode_of, verify
from autokernel.workload import Case, Workload

pytestmark = pytest.mark.gpu

KERNEL = """
import triton
import triton.language as tl

LANGUAGE = "triton"


@triton.jit
def scaled_silu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside).to(tl.float32)
    tl.store(out + at, value / (1 + tl.exp(-value)) * 1.5 + 1, mask=inside)


def launch(x, out):
    n = x.numel()
    scaled_silu_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
"""


class Block(nn.Module):
    """A product, a region with one input, attention under a mask that is written out."""

    def __init__(self, width=256, heads=4):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        y = F.silu(self.up(x)) * 1.5 + 1
        q = y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        steps = torch.arange(length, device=x.device)
        mask = (steps[:, None] >= steps[None, :])[None, None]
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return out.transpose(1, 2).reshape(batch, length, width)


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(0)
    model = Block().eval().to("cuda", torch.bfloat16)
    x = torch.randn(4, 256, 256, device="cuda", dtype=torch.bfloat16)
    return Workload("block", model, (Case((x,)),), "python")


@pytest.fixture(scope="module")
def winners(block, tmp_path_factory):
    directory, found = tmp_path_factory.mktemp("tasks"), []
    with torch.no_grad():
        groups = group(capture(block.model, block.cases[0].args))
    for number, regions in enumerate(groups):
        task = load(directory / write(directory, number, regions).id).task
        if regions[0].kind == "pointwise" and len(task.inputs) == 1 and task.inputs[0].dtype == "bfloat16":
            found.append(Winner(task, KERNEL, 1.5))
    assert len(found) == 1
    return found


def test_every_baseline_is_measured_and_the_proof_is_whole(block, winners):
    modes = ("default", "reduce-overhead", "eager-graphs")
    proof = verify(block, winners, modes=modes, budget_seconds=120)
    assert [row.name for row in proof.baselines] == ["eager", *(BASELINES[mode] for mode in modes)], proof.notes
    assert proof.result in ("gain", "no gain"), proof.notes
    assert all(row.passed for row in proof.outputs)
    assert proof.winners[0].occurrences == 1
    assert proof.winners[0].engaged == 1
    assert proof.attention is not None
    assert any("causal" in words for words in proof.attention.sites)
    assert proof.fallbacks == 0
    assert proof.pairs >= 8
    assert BASELINES[mode_of(proof)] in (proof.compiled_as, proof.best_baseline)
    assert (proof.result == "gain") == bool(kept(proof, winners) or keeps_attention(proof))


def test_wrong_values_fail_the_proof(block, winners):
    lie = dataclasses.replace(winners[0], source=KERNEL.replace("* 1.5", "* 1.6"))
    proof = verify(block, [lie], modes=("default",), budget_seconds=40)
    assert proof.result == "failed"
    assert kept(proof, [lie]) == []


def test_the_float64_run_is_on_the_device_and_writes_attention_out(block):
    assert device_class(block) == "cuda"
    x = block.cases[0].args[0]
    with raised(plain_attention=True):
        exact = raised_model(block.model)(x.double())
    assert (exact.dtype, exact.device.type) == (torch.float64, "cuda")
    with raised(2.0**-9, seed=1, plain_attention=True):
        moved = raised_model(block.model)(x.double())
    assert 0 < float((moved - exact).abs().max()) < 0.5
    check = check_outputs(block, block.model, {"eager": block.model}, seed=1)
    assert check.passed
    assert not any("no float64" in note for note in check.notes)
    assert not check_outputs(block, lambda x: block.model(x) * 1.05, {"eager": block.model}, seed=1).passed


def test_a_block_ends_when_the_device_is_done():
    a = torch.randn(4096, 4096, device="cuda")
    workload = Workload("product", torch.sin, (Case((a,)),), "python")

    def products():
        for _ in range(20):
            a @ a

    wait = wait_for(workload)
    products()
    wait()
    begin = time.perf_counter()
    products()
    wait()
    once = time.perf_counter() - begin
    found = measure({"a": products}, seconds=0, min_rounds=4, max_rounds=4, wait=wait)
    assert 0.5 * once < found.ms("a") / 1e3 < 2 * once
