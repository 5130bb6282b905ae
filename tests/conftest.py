"""Tests marked `gpu`: run where there is a CUDA device, left out with one line elsewhere.

On a machine with a GPU a skip of such a test is a failure: what was to be shown there was not.
"""

from __future__ import annotations

import functools
from collections.abc import Generator

import pytest


@functools.cache
def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not gpu or has_gpu():
        return
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
    config.stash[_LEFT_OUT] = len(gpu)


_LEFT_OUT = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_LEFT_OUT, 0)
    if count:
        terminalreporter.write_line(f"{count} tests marked gpu were left out: this torch sees no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.get_closest_marker("gpu") is not None and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"on a GPU machine a skip is a failure: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and collector.path.name.endswith("_gpu.py") and has_gpu():  # importorskip at a file's head
        report.outcome = "failed"
        report.longrepr = f"on a GPU machine a skip is a failure: {report.longrepr}"
    return report
