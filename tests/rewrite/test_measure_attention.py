"""The choice of a backend: each is compared with float32 before it is timed; the user's random state stays."""

import dataclasses
import threading

import pytest
import torch

from autokernel.rewrite import AttentionSite, TensorLayout, measure, pinned


def layout(*shape, stride=None, dtype="float32"):
    return TensorLayout(shape, stride or torch.empty(shape, device="meta").stride(), dtype)


PLAIN = layout(1, 4, 17, 8)
SITES = {
    "plain": AttentionSite(PLAIN, PLAIN, PLAIN, "cpu", "none"),
    "causal": AttentionSite(PLAIN, PLAIN, PLAIN, "cpu", "causal", scale=0.1),
    "grouped": AttentionSite(PLAIN, layout(1, 2, 17, 8), layout(1, 2, 17, 8), "cpu", "none", gqa=True),
    "bfloat16": AttentionSite(*[layout(2, 3, 33, 16, dtype="bfloat16")] * 3, "cpu", "causal"),
    "a mask that is expanded": AttentionSite(
        PLAIN, PLAIN, PLAIN, "cpu", "given", given=layout(1, 4, 17, 17, stride=(289, 0, 17, 1), dtype="bool")
    ),
    "keys that are expanded": AttentionSite(PLAIN, *[layout(1, 4, 17, 8, stride=(136, 0, 8, 1))] * 2, "cpu", "none"),
    "a float mask": AttentionSite(PLAIN, PLAIN, PLAIN, "cpu", "given", given=layout(17, 17)),
}


@pytest.mark.parametrize("name", SITES)
def test_what_works_at_a_site_is_timed(name):
    measured = measure.measure(SITES[name])
    assert set(measured.seconds) == {"flash", "default"} and not measured.refused
    assert all(seconds > 0 for seconds in measured.seconds.values())
    assert measured.fastest == "flash"
    assert measure.choose_by_measurement(SITES[name]) in (None, "flash")


def test_a_site_is_measured_once_however_often_it_occurs():
    first = measure.measure(SITES["plain"])
    assert measure.measure(dataclasses.replace(SITES["plain"], count=12)) is first


def test_a_kernel_that_is_wrong_is_not_chosen(monkeypatch):
    """The operator is replaced by one that leaves out the scale: near enough to look right."""
    site = dataclasses.replace(SITES["plain"], scale=0.37)
    flash = pinned.overload("flash")
    monkeypatch.setattr(
        measure,
        "overload",
        lambda name: lambda q, k, v, mask, causal, scale, *rest: flash(q, k, v, mask, causal, 0.36, *rest),
    )
    measured = measure.measure(site)
    assert "error" in measured.refused["flash"] and measured.fastest is None
    assert measure.choose_by_measurement(site) is None


def test_a_kernel_that_raises_is_not_chosen(monkeypatch):
    def raising(*args):
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr(measure, "overload", lambda name: raising)
    measured = measure.measure(dataclasses.replace(SITES["plain"], scale=0.41))
    assert measured.refused == {"flash": "no kernel image"} and set(measured.seconds) == {"default"}


def test_the_random_state_is_not_touched():
    before = torch.random.get_rng_state()
    measure.measure(dataclasses.replace(SITES["plain"], scale=0.43))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_only_a_part_is_compared_where_the_scores_are_too_many(monkeypatch):
    monkeypatch.setattr(measure, "_SCORES", 2 * 17 * 17)
    site = dataclasses.replace(SITES["grouped"], scale=0.47)
    assert measure._compared(site) == (1, 2)
    assert set(measure.measure(site).seconds) == {"flash", "default"}


def test_rows_that_see_nothing_are_not_compared():
    site = SITES["a float mask"]
    expected = torch.tensor([[[[1.0, float("nan")]]]]).expand(1, 4, 17, 2)
    assert measure._wrong(site, torch.ones(1, 4, 17, 2), expected) is None
    assert "more than" in measure._wrong(site, torch.full((1, 4, 17, 2), 1.1), expected)


def test_two_threads_measure_a_site_once(monkeypatch):
    calls = []
    real = measure._measure
    monkeypatch.setattr(measure, "_measure", lambda site: calls.append(site) or real(site))
    site = dataclasses.replace(SITES["plain"], scale=0.53)
    threads = [threading.Thread(target=measure.measure, args=(site,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
