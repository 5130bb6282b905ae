"""What attention is handed while nothing traces, and which kernel a trace of it holds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from autokernel.rewrite.masks import SDPA
from autokernel.rewrite.seen import eager_masks, traced_as

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
Q = torch.randn(2, 4, 12, 8, generator=torch.Generator().manual_seed(3))
MASK = torch.ones(12, 12, dtype=torch.bool).tril()


def test_masks_are_seen_by_position_and_by_keyword():
    def call():
        F.scaled_dot_product_attention(Q, Q, Q)
        F.scaled_dot_product_attention(Q, Q, Q, MASK)
        F.scaled_dot_product_attention(Q, Q, Q, attn_mask=MASK)
        F.scaled_dot_product_attention(Q, Q, Q, None, 0.0, True)
        torch.nn.functional.scaled_dot_product_attention(Q, Q, Q, is_causal=True)

    assert eager_masks(call) == ("none", "given", "given", "causal", "causal")


def test_a_model_without_attention_hands_nothing():
    assert eager_masks(lambda: nn.Linear(4, 4)(torch.ones(2, 4))) == ()


def test_a_call_that_raises_raises():
    def call():
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        eager_masks(call)


def test_transformers_builds_no_mask_while_nothing_traces():
    ids = torch.arange(24).reshape(2, 12)
    bert = BertModel(BertConfig(**SMALL, max_position_embeddings=32)).eval()
    assert eager_masks(lambda: bert(ids, attention_mask=torch.ones_like(ids))) == ("none", "none")
    llama = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)).eval()
    assert eager_masks(lambda: llama(ids, use_cache=False)) == ("causal", "causal")


def attention_of(module):
    (node,) = module.graph.find_nodes(op="call_function", target=SDPA)
    return node


def test_the_kernel_in_a_trace_is_that_of_its_operators(traced):
    fused = traced(lambda q: F.scaled_dot_product_attention(q, q, q), Q)
    assert traced_as(attention_of(fused)) == "flash"
    masked = traced(lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), Q, MASK)
    assert traced_as(attention_of(masked)) == "flash", "the CPU's takes a mask"


def test_attention_without_a_fused_kernel_is_unfused(traced):
    dropping = traced(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), Q)
    assert traced_as(attention_of(dropping)) == "unfused"
    three = traced(lambda q: F.scaled_dot_product_attention(q[0], q[0], q[0]), Q)
    assert traced_as(attention_of(three)) in ("unfused", "flash")


def test_the_graph_is_as_before(traced):
    module = traced(lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), Q, MASK)
    before = [node.format_node() for node in module.graph.nodes]
    traced_as(attention_of(module))
    assert [node.format_node() for node in module.graph.nodes] == before
