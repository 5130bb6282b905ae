"""What a person reads: complete at 80 and 100 columns, honest about what is missing."""

import dataclasses
import io
import subprocess
import sys

import pytest
from rich.console import Console

from autokernel import report
from autokernel.records import SameAgainstSame, Timing


def text(renderable, width=100):
    """As the command line prints it."""
    console = Console(width=width, file=io.StringIO())
    console.print(renderable, crop=False)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(view, width):
    shown = text(report.summary(view), width)
    assert all(len(line.rstrip()) <= width for line in shown.splitlines() if "Run.load" not in line)
    for figure in (
        "1.68 ms",
        "52.0 %",
        "6.24 ms",
        "1.04× [1.02, 1.06]",
        "taken out 0.99× [0.98, 1.01]",
        "[0.99, 1.03]",
    ):
        assert figure in shown


def test_what_no_generator_covers_is_listed_with_its_share_and_reason(profile):
    shown = text(report.profile_table(profile))
    assert "No built-in generator for 67.0 % of the time" in shown
    assert "linear 52.0 %, matmul 12.0 % – a matrix product" in shown
    assert "embedding 3.0 % – gather is not generated yet" in shown


def test_regions_of_one_title_are_told_apart_by_their_place_and_added_up_by_their_reason(profile):
    linear = next(row for row in profile.regions if row.title == "linear")
    twins = tuple(
        linear.model_copy(update={"share": share, "lines": (f"m.py:{line}  x = f(x)",)})
        for share, line in [(0.3, 7), (0.2, 9)]
    )
    shown = text(report.profile_table(profile.model_copy(update={"regions": (*twins, profile.regions[0])})))
    assert "linear  m.py:7" in shown and "linear  m.py:9" in shown
    assert "linear 50.0 % (2 regions)" in shown
    assert "01 add → rms norm" in shown


def test_parts_that_were_not_captured_are_named_with_their_brackets(profile):
    assert "graph 2: autocast region [no graph]" in text(report.profile_table(profile))


def test_a_poor_attribution_is_said(profile):
    shown = text(report.profile_table(profile.model_copy(update={"attributed": 0.8, "total_us": 30_000.0})))
    assert "80.0 % of it is attributed" in shown
    assert "Less than 95.0 % is attributed" in shown
    assert "differ by more than 5.0 %" in shown
    assert "read the shares with care" not in text(report.profile_table(profile))


def test_regions_beyond_the_table_are_summed_up(profile):
    many = tuple(profile.regions[0].model_copy(update={"share": 0.01}) for _ in range(40))
    shown = text(report.profile_table(profile.model_copy(update={"regions": many})))
    assert "and 26 regions more, 26.0 % of the time" in shown


def test_the_summary_of_a_gain_ends_with_three_lines_to_paste(view):
    lines = [line.strip() for line in text(report.summary(view), 40).strip().splitlines()]
    load = f"run = autokernel.Run.load({str(view.path)!r})"
    assert lines[-3:] == ["import autokernel", load, "model = run.apply(model)"]
    assert any("Result: gain" in line for line in lines)


def test_faster_level_and_slower_follow_the_interval_not_the_ratio(view):
    rows = [
        row.model_copy(update=dict(zip(("ratio", "ci_low", "ci_high"), figures, strict=True)))
        for row, figures in zip(
            view.proof.baselines, [(1.1, 1.01, 1.2), (1.1, 0.99, 1.2), (0.9, 0.85, 0.98)], strict=True
        )
    ]
    shown = text(
        report.summary(dataclasses.replace(view, proof=view.proof.model_copy(update={"baselines": tuple(rows)})))
    )
    verdicts = [
        line.split()[-1] for line in shown.splitlines() if line.startswith(("eager", "torch.compile", "max-auto"))
    ]
    assert verdicts == ["faster", "level", "slower"]


def test_experiments_after_the_verification_are_said_to_be_unproved(view, make_trial):
    assert "came after this verification" not in text(report.summary(view))
    later = make_trial(71, "01-add-rms-norm", 1.2, kept=True).model_copy(update={"finished_at": "2026-01-02T00:00:00Z"})
    shown = text(report.summary(dataclasses.replace(view, trials=(*view.trials, later))))
    assert "1 experiment came after this verification" in shown
    assert f"autokernel verify {view.path}" in shown


def test_no_gain_recommends_the_baseline_and_claims_no_kernel(view):
    winners = tuple(row.model_copy(update={"kept": False}) for row in view.proof.winners)
    proof = view.proof.model_copy(
        update={"result": "no gain", "recommended": "torch.compile", "ours_ms": None, "winners": winners}
    )
    shown = text(report.summary(dataclasses.replace(view, proof=proof)))
    assert "Result: no gain" in shown and "Recommended: torch.compile" in shown
    assert "no kernel stayed in" in shown
    assert "faster" not in shown.split("End to end")[1].split("Result")[0]


def test_a_wrong_output_is_shouted_and_nothing_is_offered_to_paste(view):
    outputs = tuple(row.model_copy(update={"passed": False, "worst": 7.0}) for row in view.proof.outputs)
    proof = view.proof.model_copy(update={"result": "failed", "outputs": outputs, "recommended": "torch.compile"})
    shown = text(report.summary(dataclasses.replace(view, proof=proof)))
    assert "Output 0 is WRONG" in shown and "Result: failed" in shown
    assert "import autokernel" not in shown


def test_a_live_run_says_who_works_on_it_and_that_nothing_is_verified(view):
    shown = text(report.summary(dataclasses.replace(view, proof=None, owner="process 4711 on host")))
    assert "process 4711 on host" in shown and "nothing is verified yet" in shown
    assert "Result" not in shown


def test_a_stopped_run_says_how_to_go_on(view):
    shown = text(report.summary(dataclasses.replace(view, proof=None)), 40)
    assert f"autokernel resume {view.path}" in shown


def test_an_empty_run_has_a_summary():
    shown = text(report.summary(report.RunView()))
    assert "0 experiments on 0 tasks" in shown and "nothing that beats PyTorch yet" in shown


def test_the_report_imports_neither_torch_nor_numpy():
    code = (
        "import sys; import autokernel.report as r, autokernel.report.overview, autokernel.report.progress, "
        "autokernel.report.facts, autokernel.report.usefile, rich.console; r.summary(r.RunView()); "
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def same_against_same(view, ratio, claimed):
    timing = Timing(
        incumbent_us=10 * ratio, candidate_us=10, speedup=ratio, ci_low=ratio - 0.02, ci_high=ratio + 0.02, pairs=8
    )
    after = 0.12 if claimed else 0.005
    return SameAgainstSame(
        task=view.tasks[0].id, timing=timing, min_gain_before=0.005, min_gain_after=after, claimed=claimed
    )


def test_a_kernel_that_won_against_itself_is_told(view):
    calm, liar = same_against_same(view, 1.0, False), same_against_same(view, 1.04, True)
    shown = text(report.summary(dataclasses.replace(view, trials_of_same=(calm,))))
    assert "against itself, 1 time: a gain must be at least 0.5 %" in shown
    assert "noisier" not in shown
    shown = " ".join(text(report.summary(dataclasses.replace(view, trials_of_same=(calm, liar)))).split())
    assert "2 times: a gain must be at least 12 %" in shown
    assert f"{view.tasks[0].id} measured 1.04× [1.02, 1.06] against itself" in shown
    assert "the least gain was widened" in shown
