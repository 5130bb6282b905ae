"""Proofs of real models: a gain that is one, and everything that must not be called a gain."""

import dataclasses

import pytest
import torch
from torch import nn

from autokernel.install.compiling import BASELINES, compile_alone
from autokernel.install.substitute import Substitution
from autokernel.records import Proof
from autokernel.verify import variants
from autokernel.verify.interval import Interval
from autokernel.verify.leave_out import InModel
from autokernel.verify.verify import kept, mode_of, verify
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
    proof = verify(chain, winners, modes=("default",), budget_seconds=8, say=said.append)
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
    proof = verify(chain, winners, modes=("default",), budget_seconds=40)
    rows = {row.task: row for row in proof.winners}
    assert not rows[winners[1].task.id].kept
    assert rows[winners[1].task.id].ci_high < 1
    assert "taken out" in rows[winners[1].task.id].note
    assert rows[winners[0].task.id].kept
    assert proof.result == "gain"
    assert kept(proof, winners) == [winners[0]]


def test_kernels_that_all_slow_the_model_are_no_gain_and_the_baseline_is_recommended(rows, winners_of):
    winners = [slower(winner, 0.005) for winner in winners_of(rows.model, *rows.cases[0].args)]
    proof = verify(rows, winners, modes=(), budget_seconds=6)
    assert proof.result == "no gain"
    assert (proof.recommended, mode_of(proof)) == ("eager", "eager")
    assert kept(proof, winners) == []


def test_wrong_values_fail_the_proof_however_fast(chain, winners_of):
    winners = winners_of(chain.model, *chain.cases[0].args)
    proof = verify(chain, [wrong(winners[0]), *winners[1:]], modes=(), budget_seconds=6)
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
    proof = verify(rows, winners, modes=("default",), budget_seconds=20)
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
    proof = verify(chain, winners, modes=(), budget_seconds=20)
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
