"""The judge's comparison on kernels that are known to be right, or wrong: kinds × dtypes × shapes × mutants.

The limits are those of the table that `benchmarks/judge_mutants.py` prints: honest kernels refused < 0.5 %, mutants
refused ≥ 99.5 %. Seeds are fixed: what passes here passes always, and a change of the rule shows. The same outputs with
a tolerance three times as large, or a third of it, must miss the limits.
"""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from autokernel.judge import tolerance
from autokernel.judge.oracle import Expected, Oracle
from autokernel.records import Reason, Task, TensorSpec

FILE = Path(__file__).parents[2] / "benchmarks" / "judge_mutants.py"
HIDDEN = {"maximum not subtracted", "NaN left out", "NaN taken for 0", "wrong eps"}  # on the values of most models
SOME = ((64, 200), (7, 1023), (33, 1), (61, 31), (2, 127))


def the_benchmark():
    spec = importlib.util.spec_from_file_location("judge_mutants", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    return the_benchmark()


@pytest.fixture(scope="module")
def found(table):
    """Every kind in every dtype, at one of the shapes in turn."""
    pairs = [(kind, dtype) for kind, of in table.ALL_KINDS.items() for dtype in of.only]
    return [
        run
        for number, (kind, dtype) in enumerate(pairs)
        for run in table.runs(kind, dtype, SOME[number % len(SOME)], key="a fixed seed", sizes=1)
        if run.shows and run.kernel != table.ROUNDED_AGAIN
    ]


def refused(runs, honest):
    """The share that is refused, and which ones were judged otherwise than they should be."""
    of = [run for run in runs if run.honest is honest]
    verdicts = [bool(run.refused()) for run in of]
    wrong = [(run.kind, run.dtype, run.shape, run.kernel) for run, no in zip(of, verdicts, strict=True) if no is honest]
    return sum(verdicts) / len(of), wrong


def test_there_is_enough_to_tell_half_a_percent_from_none(found):
    assert sum(run.honest for run in found) >= 120
    assert sum(not run.honest for run in found) >= 150


def test_honest_kernels_are_not_refused_whatever_their_order_of_summation(table, found):
    share, wrong = refused(found, honest=True)
    assert share < table.MOST_HONEST, wrong


def test_mutants_are_refused(table, found):
    share, wrong = refused(found, honest=False)
    assert share >= table.LEAST_MUTANTS, wrong


def test_every_mutant_is_refused_in_the_stage_where_its_fault_can_show(table, found):
    stages = {}
    for run in found:
        if not run.honest:
            names = [name for name, _ in run.refusals()] if run.kernel in HIDDEN else [run.refused()]
            stages.setdefault(run.kernel, set()).update(names)
    assert set(stages) == {name for kind in table.ALL_KINDS.values() for name in kind.mutants} - {table.ROUNDED_AGAIN}
    assert "stability: large" in stages["maximum not subtracted"]
    assert "smoke" not in stages["maximum not subtracted"]
    assert stages["NaN left out"] == {"stability: nan"} == stages["NaN taken for 0"]
    assert "stability: tiny" in stages["wrong eps"]
    for name in set(stages) - HIDDEN:
        assert "smoke" in stages[name], name


def test_a_tolerance_of_a_third_refuses_honest_kernels(table, found, monkeypatch):
    scale(monkeypatch, 1 / 3)
    share, _ = refused(found, honest=True)
    assert share >= table.MOST_HONEST


def test_a_tolerance_three_times_as_large_lets_mutants_through(table, found, monkeypatch):
    scale(monkeypatch, 3)
    share, _ = refused(found, honest=False)
    assert share < table.LEAST_MUTANTS


def scale(monkeypatch, factor):
    right = tolerance.tolerance
    monkeypatch.setattr(tolerance, "tolerance", lambda *words: right(*words) * factor)


# --- the rules for bfloat16 and float16, one by one -------------------------------------------------------------------


def narrow(rows, width):
    """Values of a bfloat16 output, eager's rounding of them, and no spread."""
    reference = 1 + torch.rand(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Expected(reference.bfloat16(), reference, torch.zeros_like(reference), False)


def test_a_row_that_is_off_as_one_is_refused_though_each_of_its_elements_is_inside_its_tolerance():
    one = narrow(8, 400)
    shifted = one.reference.clone()
    shifted[3] += 0.9 * 2**-7  # 0.9 ulp
    found = tolerance.compare("out", shifted.bfloat16(), one)
    assert found.worst < 1 and found.reason is Reason.wrong_values
    assert "out[3, :]" in found.explanation and "1 of 8 rows" in found.explanation
    assert tolerance.compare("out", one.reference.bfloat16(), one).reason is None


def test_rounding_twice_is_no_fault_in_a_row():
    one = narrow(8, 400)
    scale = 1.2345678
    twice = ((one.reference / scale).bfloat16().double() * scale).bfloat16()
    assert tolerance.compare("out", twice, one).reason is None


def test_an_output_s_own_rounding_is_not_counted_as_spread_but_that_of_a_value_in_between_is():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for reference, least, most in ((lambda x: x * 1.5, 0, 2**-20), (lambda x: (x * 1.5) * 1.1, 2**-10, 2**-8)):
        given = TensorSpec(name="x", dtype="bfloat16", shape=(64, 64), stride=(64, 1))
        task = Task(
            id="t", title="t", fingerprint="f", shape_key="s", inputs=(given,),
            outputs=(given.model_copy(update={"name": "out"}),),
        )  # fmt: skip
        (found,) = Oracle(task, reference, [x]).expect([x])
        relative = float((found.spread / found.reference.abs()).nan_to_num().median())
        assert least <= relative <= most


def test_a_sum_that_cancels_has_the_error_of_its_neighbours():
    """One value near zero among many: eager hit it by chance, another honest kernel needn't."""
    reference = torch.cat((torch.full((500,), 0.1, dtype=torch.float64), torch.tensor([1e-4], dtype=torch.float64)))
    eager = reference.float()
    eager[:500] += 1e-5
    one = Expected(eager, reference, torch.zeros_like(reference), False)
    near = reference.float()
    near[-1] += 1e-5
    assert tolerance.compare("out", near, one).reason is None
    near[-1] += 5e-5
    assert tolerance.compare("out", near, one).reason is Reason.wrong_values


def test_a_row_may_be_off_as_one_where_the_reference_rounds_on_its_way_and_eager_s_own_rows_are_never_refused():
    one = narrow(8, 400)
    shifted = (one.reference * (1 + 2**-8)).bfloat16()  # a factor of the row's, rounded
    assert tolerance.compare("out", shifted, one).reason is not None
    inner = dataclasses.replace(one, spread=one.reference * 2**-9)
    assert tolerance.compare("out", shifted, inner).reason is None
    off = dataclasses.replace(one, eager=(one.reference * (1 + 2**-9)).bfloat16())
    assert tolerance.compare("out", off.eager, off).reason is None
