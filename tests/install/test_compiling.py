"""Several compiled variants of one model in one process."""

import torch
from torch import nn

from autokernel.graph.replace import replace
from autokernel.install import compiling
from autokernel.install.compiling import (
    BASELINES,
    GRAPHS,
    MODES,
    TWINS,
    baseline,
    compile_alone,
    inductor_patches,
    modes_of,
)
from autokernel.install.substitute import Substitution


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
    with torch.no_grad(), compiling.room_for_variants():
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


def test_modes_with_cuda_graphs_are_those_torch_has_plus_eager_s_own():
    assert modes_of("cpu") == ("default", "max-autotune")
    assert modes_of("cuda") == ("default", "reduce-overhead", "max-autotune", "max-autotune-graphs", "eager-graphs")
    assert {mode for mode in MODES if "CUDA graphs" in BASELINES[mode]} == GRAPHS
    assert len(set(BASELINES.values())) == len(MODES)
    graphs = {mode for mode in MODES if mode in TWINS and inductor_patches(mode).get("triton.cudagraphs")}
    assert graphs == GRAPHS - {"eager-graphs"}
    for mode, twin in TWINS.items():
        without = [{k: v for k, v in inductor_patches(one).items() if k != "triton.cudagraphs"} for one in (mode, twin)]
        assert without[0] == without[1]
        assert (mode in GRAPHS) != (twin in GRAPHS)


def test_parameters_of_a_rewritten_graph_are_still_known_to_stay_where_they_are(monkeypatch):
    """Otherwise CUDA graphs would copy every weight at each call."""
    from torch._functorch.aot_autograd import aot_module_simplified

    seen = []

    def compiler(gm, inputs):
        seen.append(torch._guards.TracingContext.get().fw_metadata.static_input_indices)
        return gm

    def compile_fx(module, inputs, *, config_patches):
        names = [node.meta["path"] for node in module.graph.find_nodes(op="placeholder")]
        compiled = aot_module_simplified(module, inputs, fw_compiler=compiler, inference_compiler=compiler)
        seen.append(names)
        return compiled

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(8, 8)
            self.register_buffer("shift", torch.ones(8))

        def forward(self, x):
            return self.line(x).relu() + self.shift

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    monkeypatch.setattr(Substitution, "_handle", lambda self, captured, inputs: replace(captured, {}))
    model, x = Model(), torch.randn(2, 8)
    with torch.no_grad():
        found = compile_alone(model, backend=Substitution([], "reduce-overhead").backend(), dynamic=False)(x)
        torch.testing.assert_close(found, model(x))
    static, names = seen
    assert {names[index] for index in static} == {"line.weight", "line.bias", "shift"}
