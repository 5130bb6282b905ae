"""The benchmarks' harness on toy rows: what is kept, what is measured again, what a failure costs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[2] / "benchmarks" / "harness.py"


@pytest.fixture(scope="module")
def harness():
    spec = importlib.util.spec_from_file_location("benchmark_harness", HARNESS)
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_harness"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def toy(harness, tmp_path):
    return Toy(harness, tmp_path)


class Toy:
    """A benchmark of three rows over two source files, and how often each row was run."""

    def __init__(self, harness, folder: Path) -> None:
        self.harness, self.folder, self.runs = harness, folder, []
        self.out = folder / "out.json"
        self.source = folder / "src"
        self.source.mkdir()
        (self.source / "first.py").write_text("one")
        (self.source / "second.py").write_text("two")
        (folder / "toy.py").write_text("the benchmark itself")
        self.figures = {"a": {"us": 1.0}, "b": {"us": 2.0}, "c": {"us": 3.0}}
        self.about = 0.0

    def benchmark(self, strict=False):
        def rows(options):
            globs = {"a": ("first.py",), "b": ("second.py",), "c": ("*.py",)}
            return [self.harness.Row(n, lambda n=n: self.measure(n), globs[n], self.about) for n in globs]

        def table(results):
            return "TABLE " + " ".join(f"{name}={figures['us']}" for name, figures in results.items())

        return self.harness.Benchmark("toy", self.folder / "toy.py", rows, table, strict=strict, source=self.source)

    def measure(self, name):
        self.runs.append(name)
        found = self.figures[name]
        if isinstance(found, Exception):
            raise found
        return found

    def call(self, *words, strict=False):
        self.runs.clear()
        return self.harness.main(self.benchmark(strict), ["--out", str(self.out), *words])

    def saved(self):
        return json.loads(self.out.read_text())


def test_every_row_is_measured_in_order_and_written_with_its_surroundings(toy, capsys):
    assert toy.call() == 0
    assert toy.runs == ["a", "b", "c"]
    saved = toy.saved()
    assert list(saved["rows"]) == ["a", "b", "c"] and saved["finished"] is True
    assert {"device", "driver", "versions", "commit", "device_seconds"} <= set(saved)
    assert set(saved["versions"]) == {"python", "torch", "triton"}
    row = saved["rows"]["b"]
    assert row["figures"] == {"us": 2.0} and len(row["code_hash"]) == 64 and row["seconds"] >= 0
    assert capsys.readouterr().out.splitlines()[-1] == "TABLE a=1.0 b=2.0 c=3.0"


def test_only_named_rows_are_measured_and_an_unknown_name_is_a_usage_error(toy, capsys):
    assert toy.call("--rows", "c,a") == 0
    assert toy.runs == ["a", "c"]
    assert toy.call("--rows", "a,nothing") == 2
    assert toy.runs == [] and "no row nothing" in capsys.readouterr().out


def test_merging_keeps_every_row_of_the_same_code(toy, capsys):
    toy.call()
    assert toy.call("--merge", str(toy.out)) == 0
    assert toy.runs == []
    assert all(row["merged"] for row in toy.saved()["rows"].values())
    assert "device time used: 0.0 s; 0 rows measured, 3 kept" in capsys.readouterr().out


def test_a_row_is_measured_again_when_a_file_it_exercises_has_changed(toy):
    toy.call()
    (toy.source / "second.py").write_text("two, changed")
    toy.call("--merge", str(toy.out))
    assert toy.runs == ["b", "c"]
    assert set(toy.saved()["rows"]) == {"a", "b", "c"}


def test_every_row_is_measured_again_when_the_benchmark_itself_has_changed(toy):
    toy.call()
    (toy.folder / "toy.py").write_text("another benchmark")
    toy.call("--merge", str(toy.out))
    assert toy.runs == ["a", "b", "c"]


def test_a_row_of_another_device_is_not_kept(toy, capsys):
    toy.call()
    saved = toy.saved()
    saved["rows"]["a"]["device"] = "another"
    other = toy.folder / "other.json"
    other.write_text(json.dumps(saved))
    toy.call("--merge", str(other))
    assert toy.runs == ["a"]
    assert "1 rows of" in capsys.readouterr().out


def test_a_file_to_merge_that_is_not_there_yet_is_said_and_all_is_measured(toy, capsys):
    assert toy.call("--merge", str(toy.out)) == 0
    assert toy.runs == ["a", "b", "c"]
    assert "nothing to merge" in capsys.readouterr().out


def test_a_row_that_raises_is_recorded_and_the_others_are_measured(toy, capsys):
    toy.figures["b"] = RuntimeError("no such kernel")
    assert toy.call() == 1
    assert toy.runs == ["a", "b", "c"]
    failed = toy.saved()["rows"]["b"]
    assert failed["status"] == "failed" and failed["error"] == "RuntimeError: no such kernel"
    assert "figures" not in failed and "measure" in failed["traceback"]
    out = capsys.readouterr().out
    assert "FAILED b: RuntimeError: no such kernel" in out and out.splitlines()[-1] == "TABLE a=1.0 c=3.0"


def test_a_failed_row_is_measured_again_by_a_merge(toy):
    toy.figures["b"] = RuntimeError("for now")
    toy.call()
    toy.figures["b"] = {"us": 5.0}
    assert toy.call("--merge", str(toy.out)) == 0
    assert toy.runs == ["b"]
    assert toy.saved()["rows"]["b"]["figures"] == {"us": 5.0}


def test_no_row_is_started_once_the_device_time_is_spent(toy, capsys):
    assert toy.call("--device-seconds", "0") == 0
    assert toy.runs == []
    saved = toy.saved()
    assert saved["not_started"] == ["a", "b", "c"] and saved["finished"] is False
    assert "not started, the device time was spent: a, b, c" in capsys.readouterr().out


def test_a_row_that_would_take_longer_than_is_left_is_not_started(toy):
    toy.about = 100.0
    toy.call("--device-seconds", "99")
    assert toy.runs == []
    toy.call("--device-seconds", "199")
    assert toy.runs == ["a", "b", "c"]  # toys take no time: 199 are left for each


def test_merged_rows_cost_no_device_time(toy):
    toy.call()
    (toy.source / "second.py").write_text("two, changed")
    toy.call("--merge", str(toy.out), "--device-seconds", "0")
    saved = toy.saved()
    assert toy.runs == [] and list(saved["rows"]) == ["a"] and saved["not_started"] == ["b", "c"]


def test_the_file_is_whole_after_each_row(toy):
    states = []
    measure = toy.measure
    toy.measure = lambda name: (states.append(list(toy.saved()["rows"]) if toy.out.exists() else []), measure(name))[1]
    toy.call()
    assert states == [[], ["a"], ["a", "b"]]
    assert list(toy.folder.glob(".*.part")) == []


def test_a_missed_limit_is_an_exit_status_only_where_the_benchmark_is_strict(toy, capsys):
    toy.figures["a"] = {"us": 9.0, "passed": False}
    assert toy.call() == 0
    assert toy.call(strict=True) == 1
    assert "limits missed: a" in capsys.readouterr().out


def test_a_row_that_exercises_no_file_is_an_error_not_an_empty_hash(toy, harness):
    row = harness.Row("x", dict, ("nothing_like_this.py",))
    with pytest.raises(ValueError, match="nothing_like_this"):
        harness.code_hash(toy.benchmark(), row)


def test_names_of_rows_can_be_listed_without_measuring(toy, capsys):
    assert toy.call("--list") == 0
    assert capsys.readouterr().out.split() == ["a", "b", "c"] and toy.runs == []
