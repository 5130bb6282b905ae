"""From a source to a verdict: the order of things, what a verdict holds, opponents, controls, bench."""

from __future__ import annotations

import json
import mmap

import pytest
import torch

from autokernel.errors import JudgeUnsound, KernelInvalid, NotTimed, TargetNotFound
from autokernel.judge import Opponent, Request, controls
from autokernel.judge.bench import open_sandbox, run_bench, stage_line
from autokernel.judge.contest import Contest, disagreement, exactly, impossible, keep_rule
from autokernel.judge.controls import RIGHT, WRONG, check_controls
from autokernel.judge.judge import Judge
from autokernel.judge.seeds import Seeds
from autokernel.records import Ceilings, Outcome, Reason, Stage, StageResult, Timing, Verdict
from autokernel.task.file import from_file
from autokernel.testing.cheaters import CHEATS, ODD, reference

EAGER = Opponent("eager")
CORRECT = Request(level="correctness", deadline_seconds=10)
HONEST = next(case.source for case in ODD if case.name == "plain")
SLOW = HONEST.replace("    rms_norm(x, weight, out)\n", "    for _ in range(60):\n        rms_norm(x, weight, out)\n")
CEILINGS = Ceilings(
    device="a test",
    threads=1,
    bandwidth=((1 << 16, 1e10), (1 << 24, 1e10)),
    matrix={"float32": 1e11},
    measured_at="now",
)


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox(threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def judge(sandbox):
    return Judge(from_file(reference("rms_norm")), sandbox, seeds=Seeds.fresh(), ceilings=CEILINGS)


def test_a_verdict_tells_the_whole_story(judge):
    heard = []
    judge.on_stage = heard.append
    verdict = judge.verdict(HONEST, EAGER, CORRECT)
    judge.on_stage = None
    assert verdict.verdict is Outcome.accepted and verdict.stage is Stage.edges and verdict.reason is Reason.ok
    names = [stage.name for stage in verdict.stages]
    assert names == ["check", "compile", "smoke", "shapes", "stability", "determinism", "edges"]
    assert heard == list(verdict.stages)
    assert verdict.error is not None and 0 < verdict.error.tolerance <= 1
    assert verdict.resources.code_bytes and verdict.peak_memory > 0 and len(verdict.kernel_sha256) == 64
    assert Verdict.model_validate(json.loads(verdict.dump())) == verdict


@pytest.mark.parametrize(
    ("source", "stage", "reason", "words"),
    [
        ("def launch(:", Stage.check, Reason.bad_source, "line 1"),
        ("def launch(x, out): pass", Stage.check, Reason.bad_source, "LANGUAGE"),
        ('LANGUAGE = "fortran"\ndef launch(x, out): pass', Stage.check, Reason.bad_source, "fortran"),
        ('LANGUAGE = "cpp"\nSOURCE = ""', Stage.check, Reason.bad_source, "launch"),
        (HONEST.replace("float sum = 0", "flo_at sum = 0"), Stage.compile, Reason.compile_error, "flo_at"),
        (HONEST.replace("import torch\n", "import torch\n1 / 0\n"), Stage.load, Reason.exception, "ZeroDivisionError"),
        ('SERVES = {"s0": 3}\n' + HONEST, Stage.check, Reason.bad_source, "leaves out"),
        ("\0", Stage.check, Reason.bad_source, "not Python"),
        ("(" * 250 + ")" * 250 + "\n" + HONEST, Stage.check, Reason.bad_source, "not Python"),
        ("SERVES = {[1]: 2}\n" + HONEST, Stage.check, Reason.bad_source, "SERVES"),
        ("SERVES = " + "-" * 20000 + "1\n" + HONEST, Stage.check, Reason.bad_source, "not Python"),
    ],
)
def test_what_never_gets_to_run_is_rejected_with_the_reason(judge, source, stage, reason, words):
    verdict = judge.verdict(source, EAGER, CORRECT)
    assert (verdict.verdict, verdict.stage, verdict.reason) == (Outcome.rejected, stage, reason), verdict.explanation
    assert words in verdict.explanation


def test_a_slow_kernel_is_rejected_as_too_slow_with_its_time_and_not_called_wrong(judge):
    verdict = judge.verdict(SLOW, EAGER, Request(deadline_seconds=10))
    assert (verdict.verdict, verdict.stage, verdict.reason) == (Outcome.rejected, Stage.screen, Reason.too_slow)
    assert "correct so far" in verdict.explanation and verdict.timing is not None
    assert verdict.timing.speedup < 0.7 and not verdict.timing.confirmed
    assert [stage.name for stage in verdict.stages][-2:] == ["smoke", "screen"]


def test_a_much_faster_kernel_is_confirmed_on_new_pairs(judge):
    verdict = judge.verdict(HONEST, Opponent("kernel", SLOW), Request(deadline_seconds=10, max_pairs=20))
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert [stage.name for stage in verdict.stages][2:] == [
        "smoke", "screen", "shapes", "stability", "determinism", "edges", "timing", "confirm",
    ]  # fmt: skip
    assert verdict.timing is not None and verdict.timing.confirmed and verdict.stage is Stage.confirm
    assert verdict.timing.ci_low > 1 and verdict.timing.speedup > 2 and verdict.timing.pairs >= 6
    assert verdict.timing.floor_us == pytest.approx(CEILINGS.floor_us(0, judge.loaded.task.min_bytes, "float32"), rel=1)


def test_a_screen_is_one_block_and_all_the_stages(judge):
    verdict = judge.verdict(HONEST, Opponent("kernel", SLOW), Request(level="screen", deadline_seconds=10))
    assert verdict.verdict is Outcome.accepted and verdict.stage is Stage.edges
    assert verdict.timing is not None and verdict.timing.pairs == 1 and not verdict.timing.confirmed


def test_without_the_screen_a_slow_kernel_is_accepted_and_timed(judge):
    verdict = judge.verdict(SLOW, Opponent("kernel", HONEST), Request(drop_slow=False, deadline_seconds=10))
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert verdict.timing is not None and verdict.timing.ci_high < 1 and not verdict.timing.confirmed


def test_an_opponent_that_fails_is_an_error_of_the_harness_not_of_the_candidate(judge):
    broken = HONEST.replace("    rms_norm(x, weight, out)\n", "    raise RuntimeError('broken')\n")
    verdict = judge.verdict(HONEST, Opponent("kernel", broken), Request(deadline_seconds=10))
    assert (verdict.verdict, verdict.reason) == (Outcome.error, Reason.harness)
    assert "the kernel to beat" in verdict.explanation and "broken" in verdict.explanation
    assert verdict.timing is None


def test_a_kernel_to_beat_that_does_not_compile_is_an_error_of_the_harness(judge):
    broken = HONEST.replace("float sum = 0", "flo_at sum = 0")
    verdict = judge.verdict(HONEST, Opponent("kernel", broken), Request(deadline_seconds=10))
    assert (verdict.verdict, verdict.reason) == (Outcome.error, Reason.harness)
    assert "the kernel to beat" in verdict.explanation and "flo_at" in verdict.explanation


def exhausted(kind):
    def draw(*_):
        if kind == "torch":
            torch.empty(1 << 58)
        elif kind == "mmap":
            mmap.mmap(-1, 1 << 46)
        elif kind == "python":
            bytearray(1 << 60)
        raise RuntimeError("another fault of ours")

    return draw


@pytest.mark.parametrize("kind", ["torch", "mmap", "python"])
def test_running_out_of_memory_in_the_judge_is_an_error_of_the_harness(judge, monkeypatch, kind):
    monkeypatch.setattr(judge.cases, "make", exhausted(kind))
    verdict = judge.verdict(HONEST, EAGER, CORRECT)
    assert (verdict.verdict, verdict.reason, verdict.stage) == (Outcome.error, Reason.harness, Stage.smoke)
    assert "out of memory" in verdict.explanation and verdict.stages[-1].status == "failed"


def test_another_fault_of_the_judge_is_not_taken_for_a_lack_of_memory(judge, monkeypatch):
    monkeypatch.setattr(judge.cases, "make", exhausted("none"))
    with pytest.raises(RuntimeError, match="another fault"):
        judge.verdict(HONEST, EAGER, CORRECT)


def test_two_sides_are_compared_in_the_order_given(judge):
    timing = judge.compare(Opponent("kernel", SLOW), Opponent("kernel", HONEST), pairs=4)
    assert timing.speedup > 1.5 and timing.pairs == 4
    assert timing.incumbent_us > timing.candidate_us and timing.ci_low <= timing.speedup <= timing.ci_high


def test_eager_can_be_on_either_side(judge):
    assert judge.compare(EAGER, Opponent("kernel", SLOW), pairs=2).speedup > 0
    assert judge.compare(EAGER, EAGER, pairs=2).candidate_us > 0


def test_a_kernel_that_goes_wrong_while_it_is_timed_is_named(judge):
    counting = "calls = 0\n\n\ndef launch(x, weight, out):\n    global calls\n    calls += 1\n"
    late = HONEST.replace("def launch(x, weight, out):\n", counting) + "    if calls > 100:\n        out.zero_()\n"
    with pytest.raises(NotTimed, match="wrong values"):
        judge.compare(EAGER, Opponent("kernel", late), pairs=20)


def test_a_patched_clock_gains_nothing_and_is_seen(judge):
    patched = HONEST + "\n\nimport time\n\ntime.perf_counter = lambda: 0.0\n"
    request = Request(drop_slow=False, deadline_seconds=10)
    verdict = judge.verdict(patched, Opponent("kernel", HONEST), request)
    assert (verdict.verdict, verdict.reason) == (Outcome.suspect, Reason.time_disagrees), verdict.explanation
    assert "clock" in verdict.explanation


# --- the rules, without a child ---------------------------------------------------------------------------------------


def test_claims_are_odd_only_when_all_are_below_what_is_possible():
    assert disagreement([0.01] * 5, 0.17) is not None
    assert disagreement([0.2] * 5, 0.17) is None
    assert disagreement([0.01, 0.01, 0.3, 0.01], 0.17) is None
    assert disagreement([0.0] * 3, 0.17) is None  # too few to tell


def a_timing(candidate_us, floor_us):
    return Timing(
        incumbent_us=100, candidate_us=candidate_us, speedup=1, ci_low=1, ci_high=1, floor_us=floor_us, pairs=4
    )


@pytest.mark.parametrize(
    ("candidate_us", "floor_us", "wanted"),
    [
        (0.5, 10.0, Reason.time_impossible),
        (2.0, 10.0, Reason.time_disagrees),
        (3.0, 10.0, None),
        (11.0, 10.0, None),
        (2.0, None, None),
    ],
)
def test_only_what_is_impossible_is_rejected_and_the_incredible_is_suspect(candidate_us, floor_us, wanted):
    assert impossible(a_timing(candidate_us, floor_us), bound_us=1.0, below_floor=4.0) is wanted


def test_one_pair_is_too_few_to_call_a_time_impossible():
    screened = a_timing(0.5, 10.0).model_copy(update={"pairs": 1})
    assert impossible(screened, bound_us=1.0, below_floor=4.0) is None


def test_no_kernel_is_below_the_physical_bound(judge, sandbox):
    contest = Contest(judge.cases, sandbox, 10, CEILINGS)
    assert 0 < contest.impossible_us() < contest.floor_us()


def test_one_pair_gives_a_ratio_and_no_confirmation(judge, sandbox):
    contest = Contest(judge.cases, sandbox, 10, None)
    timing = contest.timing([(2e-4, 1e-4)], 0.0, confirming=True)
    assert timing.speedup == timing.ci_low == timing.ci_high == pytest.approx(2) and timing.floor_us is None
    assert not timing.confirmed


def test_a_confirmation_needs_the_gain_that_was_asked_for(judge, sandbox):
    contest = Contest(judge.cases, sandbox, 10, None)
    pairs = [(1.02 + k * 1e-4, 1.0) for k in range(6)]
    assert contest.timing(pairs, 0.01, confirming=True).confirmed
    assert not contest.timing(pairs, 0.05, confirming=True).confirmed
    assert not contest.timing(pairs, 0.01, confirming=False).confirmed


def test_a_fixed_number_of_pairs_is_that_number():
    assert exactly(3)([1.0] * 2) == "continue" and exactly(3)([1.0] * 3) == "keep"
    assert keep_rule(0.005, 4)([0.5, 0.51, 0.5, 0.52]) == "drop"


# --- controls ---------------------------------------------------------------------------------------------------------


def test_both_controls_are_what_they_must_be(sandbox):
    right, wrong = check_controls(sandbox, Seeds.fresh())
    assert right.verdict is Outcome.accepted
    assert (wrong.verdict, wrong.reason) == (Outcome.rejected, Reason.wrong_values)
    assert "out[5]" in wrong.explanation


@pytest.mark.parametrize(
    ("name", "source", "words"), [("RIGHT", WRONG, "a right kernel"), ("WRONG", RIGHT, "one wrong")]
)
def test_a_control_on_the_wrong_side_stops_the_run(sandbox, monkeypatch, name, source, words):
    monkeypatch.setattr(controls, name, source)
    with pytest.raises(JudgeUnsound, match=words):
        check_controls(sandbox, Seeds.fresh())


# --- bench ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel_file(tmp_path):
    def write(source):
        path = tmp_path / "kernel.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


def test_bench_says_each_stage_as_it_ends_and_rejects_a_cheat(kernel_file):
    lines = []
    source = next(case.source for case in CHEATS if case.name == "unset tail")
    verdict = run_bench(reference("rms_norm"), kernel_file(source), threads=1, say=lines.append)
    assert (verdict.verdict, verdict.reason) == (Outcome.rejected, Reason.not_written)
    assert [line.split()[0] for line in lines] == ["check", "compile", "smoke"]
    assert "failed" in lines[-1] and "[63, 0]" in verdict.explanation


def test_bench_judges_a_model_new_beside_its_model(kernel_file):
    source = reference("softmax").read_text().replace("class Model(", "class ModelNew(")
    verdict = run_bench(reference("softmax"), kernel_file(source), threads=1, inductor=False)
    assert verdict.verdict is Outcome.accepted, verdict.explanation
    assert verdict.timing is not None and verdict.baselines["eager"] == verdict.timing
    wrong = source.replace("torch.softmax(x, -1)", "torch.softmax(x, 0)")
    assert run_bench(reference("softmax"), kernel_file(wrong), threads=1).reason is Reason.wrong_values


def test_bench_names_what_is_missing(tmp_path, kernel_file):
    with pytest.raises(KernelInvalid):
        run_bench(reference("softmax"), tmp_path / "nothing.py")
    with pytest.raises(TargetNotFound):
        run_bench(tmp_path / "nothing.py", kernel_file(HONEST))


def test_a_line_for_a_stage_has_its_name_its_status_and_its_time():
    line = stage_line(StageResult(name=Stage.smoke, status="passed", seconds=0.123, detail="2 calls"))
    assert line == "  smoke        passed    0.12 s  2 calls"
    failed = stage_line(StageResult(name=Stage.smoke, status="failed", seconds=0.123, detail="what the verdict says"))
    assert failed == "  smoke        failed    0.12 s"


SURROGATE, LONG = HONEST + "\n# \ud800", "x = 1\n" * 100_000


@pytest.mark.parametrize(("source", "words"), [(SURROGATE, "surrogate"), (LONG, "characters")])
def test_a_text_that_can_not_be_a_file_is_refused_before_anything_reads_it(judge, source, words):
    verdict = judge.verdict(source, Opponent("eager"))
    assert (verdict.verdict, verdict.stage, verdict.reason) == (Outcome.rejected, Stage.check, Reason.bad_source)
    assert words in verdict.explanation
