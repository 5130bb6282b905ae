"""Models as the transformers library writes them, small and with random weights."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTModel,
)

from autokernel.graph.capture import make_backend
from autokernel.rewrite.attention import pin_attention
from autokernel.rewrite.masks import SDPA

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(0, 99, (2, 12), generator=torch.Generator().manual_seed(0))


def pinned_run(model, **inputs):
    """The model's first output as it is and with its attention pinned, and what was pinned."""
    seen = []

    def handle(captured, given):
        seen.append(pin_attention(captured.module, lambda site: "flash"))
        return seen[-1].module

    skipped = []
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(**inputs)[0]
        result = torch.compile(model, backend=make_backend(handle, skipped=skipped), dynamic=False)(**inputs)[0]
    torch._dynamo.reset()
    assert not skipped and len(seen) == 1
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert not seen[0].module.graph.find_nodes(op="call_function", target=SDPA)
    return seen[0]


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


def test_llama_is_causal_without_a_mask_and_repeats_no_heads():
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=32)).eval()
    done = pinned_run(model, input_ids=IDS, use_cache=False)
    assert [finding.became for finding in done.findings] == ["causal", "causal"]
    assert done.sites == ("2 × float32 2×4×12×8, 2 key heads, causal: flash",)
    left = {str(node.target) for node in done.module.graph.nodes}
    assert not any("cumsum" in name or "logical" in name or "aten.le" in name for name in left), "the mask is computed"


def test_llama_with_a_window_keeps_its_mask():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=32, sliding_window=4)
    done = pinned_run(MistralForCausalLM(config).eval(), input_ids=IDS, use_cache=False)
    assert [finding.became for finding in done.findings] == ["given", "given"]
    assert done.count == 2


def test_gpt2_is_causal_without_a_mask():
    model = GPT2Model(GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4)).eval()
    done = pinned_run(model, input_ids=IDS, use_cache=False)
    assert [finding.became for finding in done.findings] == ["causal", "causal"]


def test_bert_without_a_user_mask_has_none():
    done = pinned_run(BertModel(BertConfig(**SMALL, max_position_embeddings=32)).eval(), input_ids=IDS)
    assert done.sites == ("2 × float32 2×4×12×8, no mask: flash",)


def test_bert_with_a_user_mask_keeps_it():
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    model = BertModel(BertConfig(**SMALL, max_position_embeddings=32)).eval()
    done = pinned_run(model, input_ids=IDS, attention_mask=mask)
    assert [finding.became for finding in done.findings] == ["given", "given"]
    assert all("an input" in finding.reason for finding in done.findings)
    assert done.sites == ("2 × float32 2×4×12×8, a mask given: flash",)


def test_vit_has_no_mask():
    config = ViTConfig(**{k: v for k, v in SMALL.items() if k != "vocab_size"}, image_size=16, patch_size=8)
    done = pinned_run(ViTModel(config).eval(), pixel_values=torch.randn(2, 3, 16, 16))
    assert done.sites == ("2 × float32 2×4×5×8, no mask: flash",)
