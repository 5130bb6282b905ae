"""The judge's comparison on kernels that are known to be right, or wrong: kinds × dtypes × shapes × mutants.

Seeds are fresh in every run, as a run's are. Limits: honest kernels refused < 0.5 %, mutants refused ≥ 99.5 %, over all
that is tried here, so in effect none and at most one. One mutant is held to less: sums in bfloat16 move a bfloat16
output by a unit or two in its last place, which is within what rounding may do.
"""

import pytest

from autokernel.judge import tolerance
from autokernel.testing.mutants import KINDS, SHAPES, trials

SOME = SHAPES[:3]


def all_trials(shapes=SOME, kinds=tuple(KINDS), dtypes=None):
    return [
        trial
        for kind in kinds
        for dtype in dtypes or KINDS[kind].only
        for shape in shapes
        for trial in trials(kind, dtype, shape)
    ]


@pytest.fixture(scope="module")
def found():
    return all_trials()


def test_honest_kernels_are_not_refused_whatever_their_order_of_summation(found):
    refused = [trial for trial in found if trial.honest and trial.stage]
    assert len(refused) < 0.005 * sum(trial.honest for trial in found), refused


def test_mutants_are_refused(found):
    mutants = [trial for trial in found if not trial.honest and not trial.within_rounding and not subtle(trial)]
    accepted = [trial for trial in mutants if not trial.stage]
    assert len(mutants) > 260
    assert len(accepted) <= 0.005 * len(mutants), accepted


def subtle(trial):
    return trial.kernel == "sums in bfloat16" and trial.dtype != "float32"


def test_sums_in_bfloat16_are_refused_of_float32_always_and_of_narrower_dtypes_mostly(found):
    of = [trial for trial in found if subtle(trial) and not trial.within_rounding]
    assert sum(bool(trial.stage) for trial in of) >= 0.7 * len(of)


def test_every_mutant_is_one_somewhere_and_is_refused_where_its_fault_can_show(found):
    stages = {}
    for trial in found:
        if not trial.honest and trial.stage:
            stages.setdefault(trial.kernel, set()).add(trial.stage)
    assert set(stages) == {name for kind in KINDS.values() for name in kind.mutants}
    assert stages["maximum not subtracted"] == {"large"}
    assert stages["NaN left out"] == stages["NaN taken for 0"] == {"nan"}
    assert "tiny" in stages["wrong eps"]


def test_few_mutants_are_none_and_but_for_single_elements_only_sums_of_the_output_s_own_precision(found):
    none = [trial for trial in found if trial.within_rounding]
    assert len(none) < 0.1 * len(found)
    assert {(trial.kernel, trial.dtype) for trial in none if trial.shape[1] > 1} <= {("sums in bfloat16", "bfloat16")}


def test_a_tolerance_that_is_too_small_refuses_honest_kernels(monkeypatch):
    scaled(monkeypatch, 0.05)
    assert any(trial.honest and trial.stage for trial in all_trials(kinds=("softmax", "row mean")))


def test_a_tolerance_that_is_too_large_lets_mutants_through(monkeypatch):
    scaled(monkeypatch, 10.0)
    found = all_trials(kinds=("rms norm", "row mean"), dtypes=("bfloat16",))
    assert any(not trial.honest and not trial.stage and not trial.within_rounding for trial in found)


def scaled(monkeypatch, factor):
    true = tolerance.tolerance
    monkeypatch.setattr(tolerance, "tolerance", lambda *words: true(*words) * factor)
