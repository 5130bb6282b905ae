"""Several compiled variants of one model in one process."""

import torch
from torch import nn

from autokernel.install import compiling
from autokernel.install.compiling import MODES, baseline, compile_alone, inductor_patches


class Recorder:
    """A backend that counts what it compiles and what runs."""

    def __init__(self):
        self.compiled = self.ran = 0

    def __call__(self, gm, inputs):
        self.compiled += 1

        def run(*values):
            self.ran += 1
            return gm(*values)

        return run


class Broken(nn.Module):
    """A graph break: the inner frames' code is shared by all variants."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        y = self.line(x)
        torch._dynamo.graph_break()
        return y.relu()


def test_more_variants_than_dynamo_s_limit_each_run_their_own_code():
    model, x = Broken(), torch.randn(2, 4)
    backends = [Recorder() for _ in range(torch._dynamo.config.recompile_limit + 4)]
    variants = [compile_alone(model, backend=backend) for backend in backends]
    with torch.no_grad():
        for _ in range(2):
            for variant in variants:
                assert torch.equal(variant(x), model(x))
    assert [(backend.compiled, backend.ran) for backend in backends] == [(2, 4)] * len(backends)


def test_the_eager_baseline_is_the_model_itself():
    model = Broken()
    assert baseline(model, "eager") is model
    assert baseline(model, "default") is not model


def test_max_autotune_sets_inductor_s_own_options():
    assert inductor_patches("default") == {}
    assert inductor_patches("max-autotune")["max_autotune"] is True
    assert inductor_patches("max-autotune").get("triton.cudagraphs", False) is False


def test_a_baseline_of_several_shapes_is_compiled_for_each(monkeypatch):
    backend = Recorder()
    monkeypatch.setattr(
        compiling, "compile_alone", lambda model, mode, **rest: compile_alone(model, backend=backend, **rest)
    )
    compiled = baseline(torch.sin, "default", dynamic=False)
    for size in (3, 4, 5, 6):
        compiled(torch.ones(size))
    assert backend.compiled == 4
