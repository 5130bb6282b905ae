import json
import pickle

import pytest
from pydantic import ValidationError

from autokernel import errors
from autokernel.errors import AutokernelError, BrokenFile, NewerSchema, RunLocked
from autokernel.records import (
    Ceilings,
    Decision,
    ErrorFigures,
    FirstIncumbent,
    Outcome,
    Proof,
    Reason,
    RunConfig,
    Stage,
    StageResult,
    Timing,
    Trial,
    Verdict,
    plain,
)

TIMING = Timing(incumbent_us=2.0, candidate_us=1.0, speedup=2.0, ci_low=1.9, ci_high=2.1, pairs=8, confirmed=True)


def a_verdict(**changes):
    values = {
        "task": "01-norm",
        "kernel_sha256": "0",
        "device": "cpu",
        "isolation": "plain",
        "verdict": Outcome.accepted,
        "stage": Stage.confirm,
        "reason": Reason.ok,
        "timing": TIMING,
    }
    return Verdict(**(values | changes))


def test_a_document_reads_back_equal(tmp_path):
    verdict = a_verdict(first_incumbent="eager", baselines={"eager": TIMING})
    (tmp_path / "1.json").write_text(verdict.dump())
    assert Verdict.load(tmp_path / "1.json") == verdict
    assert json.loads(verdict.dump())["schema"] == 1


def test_a_newer_schema_is_named_before_its_fields_are_looked_at(tmp_path):
    (tmp_path / "1.json").write_text('{"schema": 2, "unheard": "of"}')
    with pytest.raises(NewerSchema, match="schema 2; this version reads up to schema 1"):
        Verdict.load(tmp_path / "1.json")


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"schema": 1}', "\x00"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "first.json").write_text(content)
    with pytest.raises(BrokenFile, match=r"first\.json"):
        FirstIncumbent.load(tmp_path / "first.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BrokenFile, match="No such file"):
        FirstIncumbent.load(tmp_path / "first.json")


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="budjet"):
        RunConfig.model_validate({"target": "x.py", "name": "x", "budjet": 3})


def test_records_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        TIMING.speedup = 9.0


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": Reason.wrong_values},
        {"verdict": Outcome.rejected, "timing": None},
        {"verdict": Outcome.rejected, "reason": Reason.wrong_values},
        {"stages": (StageResult(name=Stage.smoke, status="failed", seconds=0.1),)},
    ],
    ids=["accepted for a reason", "rejected without one", "a wrong kernel with a time", "accepted with a failed stage"],
)
def test_an_impossible_verdict_can_not_be_made(changes):
    with pytest.raises(ValidationError):
        a_verdict(**changes)


def test_a_wrong_kernel_can_not_be_kept():
    with pytest.raises(ValidationError, match="only a correct kernel"):
        Trial(
            experiment=1,
            tag="norm",
            kernel_type="row",
            correctness="FAIL",
            task="01-norm",
            decision=Decision.kept,
            reason="-",
            commit="-",
            proposer="-",
            seconds=1.0,
            finished_at="-",
        )


@pytest.mark.parametrize(
    ("changes", "wins"),
    [
        ({"first_incumbent": "eager", "baselines": {"eager": TIMING}}, True),
        ({"first_incumbent": "inductor", "baselines": {"eager": TIMING}}, False),
        ({"first_incumbent": "eager", "baselines": {"eager": TIMING.model_copy(update={"confirmed": False})}}, False),
        ({"first_incumbent": "eager", "baselines": {"eager": TIMING.model_copy(update={"ci_low": 1.0})}}, False),
        ({}, False),
    ],
)
def test_a_win_is_a_confirmed_lead_over_the_first_incumbent(changes, wins):
    assert a_verdict(**changes).wins == wins


def test_a_gain_without_a_kernel_that_ran_can_not_be_claimed():
    with pytest.raises(ValidationError, match="seen to run"):
        Proof(
            result="gain",
            recommended="autokernel",
            compiled_as="torch.compile",
            ours_ms=1.0,
            pairs=8,
            best_baseline="eager",
            baselines=(),
            outputs=(),
            winners=(),
            finished_at="-",
        )


def test_the_floor_follows_the_bandwidth_curve():
    ceilings = Ceilings(
        device="cpu",
        threads=2,
        bandwidth=((1_000, 1e9), (1_000_000, 1e10)),
        matrix={"float32": 1e11},
        measured_at="-",
    )
    assert ceilings.bytes_per_second(10) == 1e9
    assert ceilings.bytes_per_second(1_000_000_000) == 1e10
    assert 1e9 < ceilings.bytes_per_second(30_000) < 1e10
    assert ceilings.floor_us(0, 1_000_000, "float32") == pytest.approx(100.0)
    assert ceilings.floor_us(10**9, 1_000, "float32") == pytest.approx(10_000.0)


def every_error(base=AutokernelError):
    for kind in base.__subclasses__():
        yield kind
        yield from every_error(kind)


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: kind.__name__)
def test_every_error_says_what_happened_and_what_to_do(kind):
    from string import Formatter

    fields = {name for text in (kind.template, kind.remedy) for _, name, _, _ in Formatter().parse(text) if name}
    error = kind(**dict.fromkeys(fields, "something"))
    assert kind.remedy
    assert str(error).count("\n") >= 1
    assert kind.exit_code in (1, 2, 3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))
    assert kind.__module__ == errors.__name__


def test_an_error_keeps_its_values():
    error = RunLocked(path="runs/x", owner="process 7")
    assert error.values == {"path": "runs/x", "owner": "process 7"}
    assert str(error).startswith("Run runs/x is in use by process 7.\n")


def test_figures_without_a_finite_value_are_written_as_none_and_read_back(tmp_path):
    inf, nan = float("inf"), float("nan")
    figures = ErrorFigures(max=inf, rmse=nan, eager_max=0.5, eager_rmse=-inf, tolerance=inf)
    verdict = a_verdict(verdict=Outcome.rejected, reason=Reason.wrong_values, timing=None, error=figures)
    (tmp_path / "1.json").write_text(verdict.dump())
    assert Verdict.load(tmp_path / "1.json") == verdict
    assert verdict.error == ErrorFigures(max=None, rmse=None, eager_max=0.5, eager_rmse=None, tolerance=None)


def test_the_bounds_of_a_timing_are_finite(tmp_path):
    inf = float("inf")
    timing = Timing(incumbent_us=2.0, candidate_us=1.0, speedup=2.0, ci_low=-inf, ci_high=inf, floor_us=inf, pairs=2)
    (tmp_path / "1.json").write_text(a_verdict(timing=timing).dump())
    read = Verdict.load(tmp_path / "1.json").timing
    assert read == timing
    assert (read.ci_low, read.floor_us) == (0.0, None) and read.ci_high > 1e300


def test_what_a_kernel_says_can_not_move_the_cursor_turn_text_round_or_begin_a_line():
    said = "\x1b[2J\x1b]0;title\x07 fine\tand\nfine \u202eevil\x9b31m\rREJECTED"
    detail = StageResult(name=Stage.smoke, status="failed", seconds=0.1, detail=said).detail
    assert detail == "\\x1b[2J\\x1b]0;title\\x07 fine\tand\nfine \\u202eevil\\x9b31m\nREJECTED"
    assert plain("× µs – 1.3× ümlaut 漢字") == "× µs – 1.3× ümlaut 漢字"
