import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.errors import BrokenFile
from autokernel.loop import table
from autokernel.records import Decision, Trial

FIGURE = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def a_trial(number=1, **changes):
    values = {
        "experiment": number,
        "tag": "norm",
        "kernel_type": "row",
        "correctness": "PASS",
        "task": "01-norm",
        "decision": Decision.kept,
        "reason": "faster",
        "commit": "0" * 40,
        "proposer": "search",
        "seconds": 1.5,
        "finished_at": "2026-01-01T00:00:00+00:00",
    }
    return Trial(**(values | changes))


@given(description=st.text(), reason=st.text(), latency=FIGURE, low=FIGURE, seconds=st.floats(0, 1e6))
def test_any_trial_reads_back_equal(description, reason, latency, low, seconds):
    trial = a_trial(description=description, reason=reason, latency_us=latency, ci_low=low, seconds=seconds)
    line = table.format_line(trial)
    assert line.count("\n") == 1
    assert table.parse_line(line[:-1], table.COLUMNS) == trial


def test_columns_begin_with_the_ten_that_autokernel_users_know():
    assert table.COLUMNS[:10] == (
        "experiment",
        "tag",
        "kernel_type",
        "throughput_tflops",
        "latency_us",
        "pct_peak",
        "speedup_vs_pytorch",
        "correctness",
        "peak_vram_mb",
        "description",
    )


@settings(max_examples=30)  # each example syncs files to the disk
@given(count=st.integers(0, 4), cut=st.integers(0, 10_000), garbage=st.binary(max_size=20))
def test_wherever_the_file_is_torn_whole_lines_are_read_and_the_rest_is_cut_off(tmp_path_factory, count, cut, garbage):
    path = tmp_path_factory.mktemp("torn") / "results.tsv"
    table.repair(path)
    trials = [a_trial(number, description="tab\there\nand newline") for number in range(1, count + 1)]
    for trial in trials:
        table.append(path, trial)
    data = path.read_bytes()
    torn = data[: cut % (len(data) + 1)]
    path.write_bytes(torn + garbage.replace(b"\n", b""))
    whole = max(torn.count(b"\n") - 1, 0)
    assert list(table.read(path)) == trials[:whole]
    table.repair(path)
    assert list(table.read(path)) == trials[:whole]
    table.append(path, a_trial(99))
    assert [trial.experiment for trial in table.read(path)] == [*range(1, whole + 1), 99]


def test_columns_of_a_later_version_are_ignored_and_kept_in_step(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text(table.HEADER[:-1] + "\tenergy_mj\n" + table.format_line(a_trial())[:-1] + "\t17\n")
    assert table.read(path) == (a_trial(),)
    table.repair(path)
    table.append(path, a_trial(2))
    assert [line.count("\t") for line in path.read_text().splitlines()] == [len(table.COLUMNS)] * 3
    assert len(table.read(path)) == 2


def test_a_file_without_the_newest_columns_is_brought_up_to_date(tmp_path):
    path = tmp_path / "results.tsv"
    drop = table.COLUMNS.index("cost_usd")
    lines = [table.HEADER[:-1], table.format_line(a_trial())[:-1]]
    path.write_text("".join("\t".join(f for i, f in enumerate(line.split("\t")) if i != drop) + "\n" for line in lines))
    table.repair(path)
    assert path.read_text().startswith(table.HEADER)
    assert table.read(path) == (a_trial(),)


def test_damage_before_the_last_line_names_the_line(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text(table.HEADER + "nonsense\n" + table.format_line(a_trial()))
    with pytest.raises(BrokenFile, match="line 2"):
        table.read(path)


def test_a_file_that_is_no_results_table_is_refused(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(BrokenFile, match="not a header"):
        table.read(path)
