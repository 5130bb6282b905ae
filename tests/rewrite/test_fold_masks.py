"""Masks made of shapes alone are turned back where they are exactly all-true or causal, and nowhere else."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autokernel.rewrite import constant
from autokernel.rewrite.masks import SDPA, arguments, fold_masks, what_mask

LOWEST = torch.finfo(torch.float32).min
Q = torch.randn(2, 4, 12, 8, generator=torch.Generator().manual_seed(3))
SHORT = Q[:, :, :5]


def causal_by_positions(q, k):
    rows, columns = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    return (columns[None, :] <= rows[:, None])[None, None].expand(q.shape[0], 1, -1, -1)


def causal_within_one_document(q, k):
    position = torch.arange(q.shape[-2])[None]
    document = (torch.diff(position, prepend=position[:, :1] - 1) != 1).cumsum(-1)
    same = document[:, :, None] == document[:, None, :]
    return same[:, None] & causal_by_positions(q, k) & torch.ones((), dtype=torch.bool)


CAUSAL = {
    "tril": lambda q, k: torch.ones(12, 12, dtype=torch.bool).tril(),
    "positions": causal_by_positions,
    "documents": causal_within_one_document,
    "minus infinity": lambda q, k: torch.full((12, 12), float("-inf")).triu(1),
    "lowest float": lambda q, k: torch.full((12, 12), LOWEST).triu(1)[None, None].expand(2, 1, 12, 12),
    "where": lambda q, k: torch.where(causal_by_positions(q, k), 0.0, float("-inf")),
    "masked_fill": lambda q, k: torch.zeros(12, 12).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), LOWEST),
    "a wide window": lambda q, k: torch.ones(12, 12, dtype=torch.bool).tril() & ~torch.ones(12, 12).tril(-12).bool(),
}
TRUE = {
    "ones": lambda q, k: torch.ones(12, k.shape[-2], dtype=torch.bool),
    "zeros": lambda q, k: torch.zeros(2, 1, 12, k.shape[-2]),
    "a key row": lambda q, k: q.new_ones(2, 1, 1, k.shape[-2], dtype=torch.bool),
    "like a tensor of data": lambda q, k: torch.ones_like(q @ k.transpose(-1, -2), dtype=torch.bool),
}


def mask_of(module):
    (node,) = module.graph.find_nodes(op="call_function", target=SDPA)
    given_ = arguments(node)
    return given_.get("attn_mask"), bool(given_.get("is_causal"))


def with_mask(make):
    return lambda q, k: F.scaled_dot_product_attention(q, k, k, attn_mask=make(q, k), scale=0.3)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_is_causal(name, traced, honest_run):
    module = traced(with_mask(CAUSAL[name]), Q, Q)
    (finding,) = fold_masks(module)
    assert finding.became == "causal", finding.reason
    assert mask_of(module) == (None, True)
    assert len(module.graph.nodes) == 4, "the mask is still computed"
    expected = F.scaled_dot_product_attention(Q, Q, Q, is_causal=True, scale=0.3)
    torch.testing.assert_close(honest_run(module, Q, Q), expected)


@pytest.mark.parametrize("keys", [12, 5])
@pytest.mark.parametrize("name", TRUE)
def test_a_mask_that_hides_nothing_is_dropped(name, keys, traced, honest_run):
    k = Q[:, :, :keys]
    module = traced(with_mask(TRUE[name]), Q, k)
    (finding,) = fold_masks(module)
    assert finding.became == "none", finding.reason
    assert mask_of(module) == (None, False)
    torch.testing.assert_close(honest_run(module, Q, k), F.scaled_dot_product_attention(Q, k, k, scale=0.3))


OTHER = {
    "one key ahead": (lambda q, k: torch.ones(12, 12, dtype=torch.bool).tril(1), Q, Q, "neither"),
    "one key behind": (lambda q, k: torch.ones(12, 12, dtype=torch.bool).tril(-1), Q, Q, "neither"),
    "a window": (
        lambda q, k: torch.ones(12, 12, dtype=torch.bool).tril() & ~torch.ones(12, 12).tril(-4).bool(),
        Q,
        Q,
        "neither",
    ),
    "the last queries of a sequence": (
        lambda q, k: torch.ones(5, 12, dtype=torch.bool).tril(7),
        SHORT,
        Q,
        "neither",
    ),
    "top left, fewer queries": (lambda q, k: torch.ones(5, 12, dtype=torch.bool).tril(), SHORT, Q, "neither"),
    "a large number": (lambda q, k: torch.full((12, 12), -1e9).triu(1), Q, Q, "neither"),
    "not a number": (lambda q, k: torch.full((12, 12), float("nan")).triu(1), Q, Q, "neither"),
    "a slope": (lambda q, k: torch.exp(torch.arange(12.0))[None].expand(12, 12), Q, Q, "exp"),
    "chance": (lambda q, k: torch.rand(12, 12) > -1, Q, Q, "rand"),
    "one head differs": (
        lambda q, k: (
            torch.ones(4, 12, 12, dtype=torch.bool).tril() | (torch.arange(4)[:, None, None] == 2).expand(4, 12, 12)
        ),
        Q,
        Q,
        "neither",
    ),
    "data": (lambda q, k: (q @ k.transpose(-1, -2)) > -1e9, Q, Q, "an input"),
}


@pytest.mark.parametrize("name", OTHER)
def test_any_other_mask_is_left_with_a_reason(name, traced, honest_run):
    make, q, k, reason = OTHER[name]
    module = traced(with_mask(make), q, k)
    before = [node.format_node() for node in module.graph.nodes]
    (finding,) = fold_masks(module)
    assert finding.became == "given" and reason in finding.reason
    assert [node.format_node() for node in module.graph.nodes] == before


def test_a_mask_that_is_an_input_is_left(traced):
    causal = torch.ones(12, 12, dtype=torch.bool).tril()
    module = traced(lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask), Q, causal)
    (finding,) = fold_masks(module)
    assert finding.became == "given" and "an input" in finding.reason


def test_a_mask_that_gives_the_output_its_batch_is_left(traced):
    one = Q[:1]
    module = traced(with_mask(lambda q, k: torch.ones(3, 1, 12, 12, dtype=torch.bool)), one, one)
    (finding,) = fold_masks(module)
    assert finding.became == "given" and "broadcast" in finding.reason


def test_a_mask_with_dropout_is_left(traced):
    def attend(q):
        mask = torch.ones(12, 12, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.5)

    (finding,) = fold_masks(traced(attend, Q))
    assert finding.became == "given" and "dropout" in finding.reason


def test_a_mask_larger_than_the_bound_is_not_evaluated(traced, monkeypatch):
    monkeypatch.setattr(constant, "LARGEST", 143)
    (finding,) = fold_masks(traced(with_mask(CAUSAL["tril"]), Q, Q))
    assert finding.became == "given" and "144 elements" in finding.reason


def test_a_mask_that_is_read_elsewhere_stays_for_its_other_reader(traced, honest_run):
    def attend(q):
        mask = torch.ones(12, 12, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask), mask.sum()

    module = traced(attend, Q)
    assert [finding.became for finding in fold_masks(module)] == ["causal"]
    assert honest_run(module, Q)[1] == 78


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 9),
    keys=st.integers(1, 9),
    diagonal=st.integers(-2, 9),
    flips=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=2),
    kind=st.sampled_from(["bool", "-inf", "lowest", "large"]),
    heads=st.integers(0, 2),
)
def test_a_mask_is_called_causal_exactly_when_it_is(length, keys, diagonal, flips, kind, heads):
    allowed = torch.ones(length, keys, dtype=torch.bool).tril(diagonal)
    for row, column in flips:
        allowed[row % length, column % keys] ^= True
    low = {"-inf": float("-inf"), "lowest": LOWEST, "large": -1e30}.get(kind)
    mask = allowed if low is None else torch.zeros(length, keys).masked_fill(~allowed, low)
    if heads:
        mask = mask.expand(heads, 3, length, keys)
    expected = "given"
    if allowed.all():
        expected = "none"
    elif kind != "large" and length == keys and torch.equal(allowed, torch.ones_like(allowed).tril()):
        expected = "causal"
    assert what_mask(mask) == expected


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 9), window=st.integers(1, 10), offset=st.integers(0, 2), seed=st.integers(0, 2**16))
def test_what_folds_computes_the_same(length, window, offset, seed):
    position = torch.arange(length)
    ahead = position[:, None] + offset - position[None, :]
    mask = (ahead >= 0) & (ahead < window)
    q = torch.randn(1, 2, length, 4, generator=torch.Generator().manual_seed(seed))
    became = what_mask(mask)
    if became != "given":
        folded = F.scaled_dot_product_attention(q, q, q, is_causal=became == "causal")
        torch.testing.assert_close(folded, F.scaled_dot_product_attention(q, q, q, attn_mask=mask))
    else:
        assert not mask.all() and not torch.equal(mask, torch.ones_like(mask).tril())
