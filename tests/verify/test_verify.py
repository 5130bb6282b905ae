"""Proofs of real models: a gain that is one, and everything that must not be called a gain."""

import dataclasses
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autokernel.install.compiling import BASELINES, compile_alone
from autokernel.install.substitute import Substitution
from autokernel.records import Proof
from autokernel.verify import variants
from autokernel.verify.interval import Interval
from autokernel.verify.leave_out import ATTENTION, InModel
from autokernel.verify.speed import Rounds
from autokernel.verify.variants import Log, Variant, baselines
from autokernel.verify.verify import _Clock, _final_rounds, _Job, _ways, keeps_attention, kept, mode_of, verify
from autokernel.workload import Case, Workload


class Chain(nn.Module):
    """Twenty passes over a tensor larger than the inner caches: in one pass it is several times faster."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1024) + 0.5)

    def forward(self, x):
        y = x
        for step in range(10):
            y = y * self.scale + step / 100
        y = y @ torch.ones(1024, 16)
        return y.clamp(min=-3)


class Rows(nn.Module):
    def forward(self, x):
        y = torch.softmax(x * 2, -1)
        z = y @ torch.ones(64, 8)
        return z * z + 1


@pytest.fixture(scope="module")
def chain():
    torch.manual_seed(0)
    model = Chain().eval()
    return Workload(name="chain", model=model, cases=(Case((torch.randn(512, 1024),)),), target="python")


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    return Workload(name="rows", model=Rows(), cases=(Case((torch.randn(32, 64),)),), target="python")


def slower(winner, seconds=0.02):
    """The same kernel with a nap before each launch."""
    text = winner.source.replace("def launch(", "def inner(")
    nap = f"\n\nimport time\n\n\ndef launch(*arguments):\n    time.sleep({seconds})\n    inner(*arguments)\n"
    return dataclasses.replace(winner, source=text + nap)


def wrong(winner):
    """The same kernel, its first output one part in a thousand too large."""
    text = winner.source.replace("def launch(", "def inner(")
    lie = f"\n\ndef launch(*arguments):\n    inner(*arguments)\n    arguments[{len(winner.task.inputs)}].mul_(1.001)\n"
    return dataclasses.replace(winner, source=text + lie)


@pytest.fixture
def plain_compiler(monkeypatch):
    """torch.compile without Inductor: a compiled baseline in a second instead of a minute."""
    monkeypatch.setattr(variants, "baseline", lambda model, mode, **_: compile_alone(model, backend="eager"))
    monkeypatch.setattr(Substitution, "_compile", lambda self, module, inputs: module)


def test_a_real_gain_is_proved_with_its_kernels_seen_to_run(chain, winners_of, tmp_path, plain_compiler):
    winners = winners_of(chain.model, *chain.cases[0].args)
    said = []
    proof = verify(chain, winners, modes=("default",), budget_seconds=6, say=said.append)
    assert proof.result == "gain"
    assert proof.recommended == "autokernel"
    assert [row.name for row in proof.baselines] == ["eager", "torch.compile"]
    assert proof.baselines[0].ci_low > 1
    assert proof.ours_ms < proof.baselines[0].ms
    assert all(row.passed for row in proof.outputs)
    assert all(row.engaged == row.occurrences == 1 for row in proof.winners if row.kept)
    assert proof.fallbacks == 0
    assert {winner.task.id for winner in kept(proof, winners)} == {row.task for row in proof.winners if row.kept}
    assert BASELINES[mode_of(proof)] == proof.compiled_as
    assert said
    path = tmp_path / "proof.json"
    path.write_text(proof.dump())
    assert Proof.load(path) == proof


def test_a_kernel_that_slows_the_model_is_taken_out_and_the_others_stay(chain, winners_of, plain_compiler):
    winners = winners_of(chain.model, *chain.cases[0].args)
    assert len(winners) == 2
    winners[1] = slower(winners[1])
    proof = verify(chain, winners, modes=("default",), budget_seconds=16)
    rows = {row.task: row for row in proof.winners}
    assert not rows[winners[1].task.id].kept
    assert rows[winners[1].task.id].ci_high < 1
    assert "taken out" in rows[winners[1].task.id].note
    assert rows[winners[0].task.id].kept
    assert proof.result == "gain"
    assert kept(proof, winners) == [winners[0]]


def test_kernels_that_all_slow_the_model_are_no_gain_and_the_baseline_is_recommended(rows, winners_of):
    winners = [slower(winner, 0.005) for winner in winners_of(rows.model, *rows.cases[0].args)]
    proof = verify(rows, winners, modes=(), budget_seconds=5)
    assert proof.result == "no gain"
    assert (proof.recommended, mode_of(proof)) == ("eager", "eager")
    assert kept(proof, winners) == []


def test_wrong_values_fail_the_proof_however_fast(chain, winners_of):
    winners = winners_of(chain.model, *chain.cases[0].args)
    proof = verify(chain, [wrong(winners[0]), *winners[1:]], modes=(), budget_seconds=4)
    assert proof.result == "failed"
    assert not all(row.passed for row in proof.outputs)
    assert proof.recommended == "eager"
    assert kept(proof, winners) == []


def test_nothing_to_install_is_no_gain(rows, tmp_path):
    proof = verify(rows, [], modes=(), budget_seconds=2)
    assert (proof.result, proof.recommended, proof.ours_ms) == ("no gain", "eager", None)
    path = tmp_path / "proof.json"
    path.write_text(proof.dump())
    assert Proof.load(path) == proof


def test_kernels_of_another_model_replace_nothing_and_are_no_gain(rows, chain, winners_of):
    winners = winners_of(chain.model, *chain.cases[0].args)
    proof = verify(rows, winners, modes=(), budget_seconds=2)
    assert proof.result == "no gain"
    assert all(not row.kept and row.occurrences == 0 and "fingerprint" in row.note for row in proof.winners)


@pytest.mark.slow
def test_torch_compile_is_a_baseline_and_a_way_to_compile_the_rest(rows, winners_of):
    winners = winners_of(rows.model, *rows.cases[0].args)
    proof = verify(rows, winners, modes=("default",), budget_seconds=10)
    assert [row.name for row in proof.baselines] == ["eager", "torch.compile"]
    assert proof.result in ("gain", "no gain")
    assert all(row.passed for row in proof.outputs)
    assert sum(row.engaged for row in proof.winners) >= 2


def test_a_winner_is_taken_out_only_when_the_model_is_measurably_faster_without_it():
    assert InModel(None).pays
    assert InModel(None, deciding=Interval(0.995, 0.98, 1.01, 8)).pays
    assert not InModel(None, deciding=Interval(0.98, 0.97, 0.995, 8)).pays


def test_without_a_compiled_baseline_there_is_no_gain(chain, winners_of, monkeypatch):
    winners = winners_of(chain.model, *chain.cases[0].args)

    def refuse(*_):
        raise RuntimeError

    monkeypatch.setattr("autokernel.verify.leave_out.ours", refuse)
    proof = verify(chain, winners, modes=(), budget_seconds=12)
    assert (proof.result, proof.recommended) == ("no gain", "eager")
    assert any("torch.compile wasn't measured" in note for note in proof.notes)
    assert any("2 of 2 kept kernels were not measured alone" in note for note in proof.notes)
    assert {row.note for row in proof.winners} == {"not measured alone: RuntimeError"}


def test_timed_calls_leave_the_inputs_and_buffers_of_the_user_alone():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x.mul_(2) + self.calls

    model, x = Writing(), torch.ones(3)
    proof = verify(Workload("writing", model, (Case((x,)),), "python"), [], modes=(), budget_seconds=1)
    assert proof.result == "no gain"
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(model.calls, torch.zeros(1))


class Attends(nn.Module):
    def forward(self, x):
        steps = torch.arange(x.shape[-2])
        mask = steps[:, None] >= steps[None, :]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask[None, None])


@pytest.fixture(scope="module")
def attends():
    return Workload("attends", Attends().eval(), (Case((torch.randn(2, 4, 64, 16),)),), "python")


def test_rewritten_attention_is_a_winner_of_its_own(attends, plain_compiler, tmp_path, monkeypatch):
    monkeypatch.setattr("autokernel.verify.leave_out._ROUNDS", 1)
    proof = verify(attends, [], modes=("default",), budget_seconds=6, attention=True)
    row = proof.attention
    assert any("causal" in words for words in row.sites)
    assert row.in_model is not None
    assert row.ci_low <= row.in_model <= row.ci_high
    assert all(output.passed for output in proof.outputs)
    assert proof.result in ("gain", "no gain")
    assert keeps_attention(proof) == (proof.result == "gain" and row.kept)
    path = tmp_path / "proof.json"
    path.write_text(proof.dump())
    assert Proof.load(path) == proof


def test_attention_that_slows_the_model_is_taken_out(attends, plain_compiler, monkeypatch):
    found = {ATTENTION: InModel(None, "taken out", Interval(0.9, 0.88, 0.92, 8))}
    monkeypatch.setattr("autokernel.verify.verify.leave_out", lambda *_, **__: found)
    proof = verify(attends, [], modes=("default",), budget_seconds=2, attention=True)
    assert not proof.attention.kept
    assert proof.result == "no gain"
    assert not keeps_attention(proof)


def test_attention_is_left_alone_on_the_cpu_unless_asked_for(attends):
    proof = verify(attends, [], modes=(), budget_seconds=2)
    assert proof.attention is None


def test_baselines_that_the_time_is_not_enough_for_are_named(rows, monkeypatch):
    asked = []

    def enough():
        asked.append(None)
        return len(asked) < 2

    monkeypatch.setattr(variants, "baseline", lambda model, mode, **_: compile_alone(model, backend="eager"))
    log = Log(lambda _: None)
    order = ("default", "reduce-overhead", "max-autotune", "eager-graphs")
    with torch.no_grad():
        found = baselines(rows, order, log, enough)
    assert [variant.mode for variant in found] == ["eager", "default"]
    assert len(asked) == len(order)
    for mode in order[1:]:
        assert any(f"the baseline {BASELINES[mode]} is left out (not measured)" in note for note in log.notes)


@pytest.mark.parametrize(
    ("fastest", "on_cuda", "ways"),
    [
        ("default", False, ["eager", "default"]),
        ("default", True, ["default", "reduce-overhead"]),
        ("reduce-overhead", True, ["reduce-overhead"]),
        ("max-autotune", True, ["max-autotune"]),
        ("eager", True, ["default", "reduce-overhead", "eager"]),
        ("eager-graphs", True, ["default", "reduce-overhead", "eager-graphs"]),
    ],
)
def test_winners_are_tried_the_way_of_the_best_baseline_and_with_and_without_cuda_graphs(fastest, on_cuda, ways):
    modes = ("eager", "default", "reduce-overhead", "max-autotune", "eager-graphs")
    known = [Variant(mode, mode, lambda: None, lambda: None) for mode in modes]
    times = {mode: (1.0 + place,) * 6 for place, mode in enumerate(("default", *modes))}
    times[fastest] = (0.5,) * 6
    assert _ways(known, Rounds(times), on_cuda) == ways


def test_winners_are_tried_the_way_of_a_second_baseline_too_where_that_is_close():
    modes = ("default", "reduce-overhead", "max-autotune-graphs")
    known = [Variant(mode, mode, lambda: None, lambda: None) for mode in modes]
    rounds = Rounds({"default": (1.3,) * 6, "reduce-overhead": (1.02,) * 6, "max-autotune-graphs": (1.0,) * 6})
    assert _ways(known, rounds, True) == ["max-autotune-graphs", "reduce-overhead"]


def test_ours_and_the_baselines_that_are_close_are_measured_in_more_rounds_than_the_rest(rows, monkeypatch):
    sleeps = {"far": 0.008, "near": 0.002, "best": 0.002, "ours": 0.002}
    known = [Variant(name, "default", lambda: None, lambda s=s: time.sleep(s)) for name, s in sleeps.items()]
    monkeypatch.setattr("autokernel.verify.verify._ROUNDS", 8)
    monkeypatch.setattr("autokernel.verify.verify._MORE_ROUNDS", 12)
    found = _final_rounds(_Job(rows, [], False, _Clock(60.0), Log(lambda _: None)), known[:-1], known[-1])
    assert {name: len(times) for name, times in found.seconds.items()} == {"far": 8, "near": 12, "best": 12, "ours": 12}
    assert found.ratio("near", "ours").pairs == 12
    assert found.ratio("far", "ours").pairs == 8


def test_a_baseline_of_cuda_graphs_is_said_not_to_work_where_there_are_none(rows):
    proof = verify(rows, [], modes=("eager-graphs",), budget_seconds=2)
    assert [row.name for row in proof.baselines] == ["eager"]
    assert any("eager + CUDA graphs does not work" in note and "on cpu" in note for note in proof.notes)
