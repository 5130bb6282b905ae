"""Masks of a model's attention, as the graph has them and as the model left alone does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from autokernel.api.masks import mask_rows, same_calls
from autokernel.api.merge import merge
from autokernel.graph.capture import capture
from autokernel.records import Ceilings, MaskRow, Profile, RegionRow
from autokernel.workload import from_objects

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.arange(24).reshape(2, 12)
CEILINGS = Ceilings(device="t", threads=1, bandwidth=((1, 1e9),), matrix={"float32": 1e9}, measured_at="now")


def rows_of(model, *args, **kwargs):
    """Its rows, where each region takes 10 µs a call of it, of a call of 1000 µs."""
    workload = from_objects(model.eval(), args, kwargs)
    captured = capture(workload.model, args, kwargs)
    regions = {}
    for region in (region for graph in captured.graphs for region in graph.regions):
        key = region.fingerprint, region.shape_key
        count = regions[key].occurrences + 1 if key in regions else 1
        regions[key] = RegionRow(
            task=None, fingerprint=key[0], shape_key=key[1], title=region.title, kind=region.kind, occurrences=count,
            time_us=10.0 * count, share=0.01, floor_us=1.0, recoverable_us=1.0, flops=0, min_bytes=0, generator=None,
        )  # fmt: skip
    return mask_rows(workload, captured, profile(regions=tuple(regions.values())))


def profile(**more):
    values = {"regions": (), "lines": (), "total_us": 1000.0, "uninstrumented_us": 1000.0, "attributed": 1.0}
    return Profile(target="m", device="cpu", threads=1, ceilings=CEILINGS, **(values | more))


def test_the_mask_that_transformers_builds_while_tracing_is_one_row():
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=32))
    (row,) = rows_of(model, input_ids=IDS, use_cache=False)
    assert (row.count, row.folds_to, row.eager, row.dtype) == (2, "causal", "causal", "float32")
    assert row.time_us == pytest.approx(20.0) and row.share == pytest.approx(0.02)
    assert "scaled_dot_product_attention" in row.lines[0]


def test_a_padding_mask_that_eager_finds_empty_does_not_fold_and_eager_has_none():
    model = BertModel(BertConfig(**SMALL, max_position_embeddings=32))
    (row,) = rows_of(model, input_ids=IDS, attention_mask=torch.ones_like(IDS))
    assert (row.count, row.folds_to, row.eager) == (2, "given", "none")
    assert "an input" in row.reason


class Attention(nn.Module):
    def __init__(self, diagonal):
        super().__init__()
        self.diagonal = diagonal
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, q):
        self.seen += 1
        mask = torch.ones(12, 12, dtype=torch.bool).tril(self.diagonal)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@pytest.mark.parametrize(("diagonal", "folds_to"), [(0, "causal"), (11, "none"), (3, "given")])
def test_a_mask_of_the_user_s_own_is_given_in_eager_too(diagonal, folds_to):
    (row,) = rows_of(Attention(diagonal), torch.randn(2, 4, 12, 8))
    assert (row.folds_to, row.eager) == (folds_to, "given")


def test_the_model_s_buffers_are_as_before():
    model = Attention(0)
    rows_of(model, torch.randn(2, 4, 12, 8))
    assert model.seen == 0


def test_no_mask_no_row_and_no_call():
    class Plain(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    assert rows_of(Plain(), torch.randn(2, 4, 12, 8)) == ()


def test_calls_are_matched_one_to_one_only_where_they_can_be():
    assert same_calls(("none", "given"), [1, 1]) == ["none", "given"]
    assert same_calls(("none", "none", "none"), [3]) == ["none"]
    assert same_calls(("none", "given"), [2]) == [None]
    assert same_calls((), [1, 1]) == [None, None]


def test_masks_and_time_outside_are_averaged_over_cases():
    row = MaskRow(count=2, folds_to="none", reason="r", eager="none", time_us=100.0, share=0.1)
    more = row.model_copy(update={"count": 4, "time_us": 300.0})
    merged = merge([profile(masks=(row,), outside_us=40.0), profile(masks=(more,))], [1.0, 3.0])
    assert merged.outside_us == pytest.approx(10.0)
    assert merged.masks == (row.model_copy(update={"count": 4, "time_us": 250.0, "share": 0.25}),)
