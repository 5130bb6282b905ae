"""Models of transformers as targets: which class, which inputs, one step of decoding; and what is refused, and how.

Random weights, no network: where a test needs the hub it is told to be offline, or has a folder that is its answer.
"""

import json

import pytest
import torch

from autokernel.errors import GatedModel, HubUnreachable, ModelInvalid, RemoteCode
from autokernel.workload import load
from autokernel.workload.hub import _hub

LLAMA = (
    "hf:LlamaConfig(hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "intermediate_size=96,vocab_size=120)"
)


def outputs(workload):
    case = workload.cases[0]
    with torch.no_grad():
        return workload.model(*case.args, **case.kwargs)


def shapes(workload):
    return {name: tuple(v.shape) for name, v in workload.cases[0].kwargs.items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize(
    ("target", "kind", "wanted"),
    [
        (LLAMA, "LlamaForCausalLM", {"input_ids": (2, 24)}),
        ("hf:LlamaModel(hidden_size=64,num_hidden_layers=1,num_attention_heads=4,vocab_size=99)", "LlamaModel",
         {"input_ids": (2, 24)}),
        ("hf:BertConfig(hidden_size=64,num_hidden_layers=1,num_attention_heads=4,vocab_size=99)", "BertModel",
         {"input_ids": (2, 24)}),
        ("hf:T5Config(d_model=32,num_layers=1,num_heads=2,d_ff=32,vocab_size=99)", "T5ForConditionalGeneration",
         {"input_ids": (2, 24), "decoder_input_ids": (2, 24)}),
        ("hf:WhisperConfig(d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,"
         "decoder_attention_heads=2,max_source_positions=20,vocab_size=60000)", "WhisperForConditionalGeneration",
         {"input_features": (2, 80, 40), "decoder_input_ids": (2, 24)}),
        ("hf:ViTConfig(hidden_size=32,num_hidden_layers=1,num_attention_heads=2,image_size=32,patch_size=8)",
         "ViTForImageClassification", {"pixel_values": (2, 3, 32, 32)}),
    ],
)  # fmt: skip
def test_a_configuration_class_becomes_its_usual_model_with_inputs_that_it_takes(target, kind, wanted):
    workload = load(target, random_weights=True, batch=2, seq=24)
    assert type(workload.model).__name__ == kind
    assert shapes(workload) == wanted
    assert not workload.model.training
    assert any(kind in line for line in workload.assumptions)
    outputs(workload)


def test_the_same_random_weights_come_every_time():
    first, second = (load(LLAMA, random_weights=True, seq=8) for _ in range(2))
    assert torch.equal(outputs(first).logits, outputs(second).logits)


def test_weights_are_made_in_the_dtype_asked_for():
    workload = load(LLAMA, random_weights=True, seq=8, dtype="bfloat16")
    assert {value.dtype for value in workload.model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_one_step_of_decoding_gives_what_the_whole_sequence_gives_in_the_last_place():
    whole = load(LLAMA, random_weights=True, seq=16)
    step = load(LLAMA, random_weights=True, seq=16, workload="decode")
    assert shapes(step) == {"input_ids": (1, 1)}
    assert torch.equal(step.cases[0].kwargs["input_ids"], whole.cases[0].kwargs["input_ids"][:, -1:])
    expected = outputs(whole).logits[:, -1:]
    for _ in range(3):  # the same place in the cache every time
        assert torch.allclose(outputs(step), expected, atol=1e-5)


def test_a_decode_step_can_be_converted_to_another_dtype():
    step = load(LLAMA, random_weights=True, seq=16, workload="decode")
    expected = outputs(step)
    step.model.double()
    assert outputs(step).dtype is torch.float64
    assert torch.allclose(outputs(step).float(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "given", "words"),
    [
        ("hf:LlamaConfig", {"random_weights": False}, "no weights of its own"),
        ("hf:LlamaConfic", {}, "no configuration or model class LlamaConfic"),
        ("hf:LlamaConfig(hidden_size=print(1))", {}, "not a class name"),
        ("hf:LlamaConfig(64)", {}, "not a class name"),
        ("hf:Pipeline", {}, "no configuration or model class"),
        (LLAMA.replace("vocab_size=120", "vocab_size=120,max_position_embeddings=16"), {"seq": 17}, "its 16 positions"),
        (LLAMA, {"workload": "decode", "seq": 1}, "--seq 2 or more"),
        ("hf:T5Config(d_model=32,num_layers=1,num_heads=2,d_ff=32,vocab_size=99)", {"workload": "decode"},
         "decoder-only"),
    ],
)  # fmt: skip
def test_what_can_not_be_a_model_is_refused_with_the_reason(target, given, words):
    with pytest.raises(ModelInvalid, match=words) as caught:
        load(target, **{"random_weights": True, **given})
    assert "hf:NAME takes" in str(caught.value)


def test_the_default_length_is_cut_to_the_positions_there_are_and_said():
    target = LLAMA.replace("vocab_size=120", "vocab_size=120,max_position_embeddings=16")
    workload = load(target, random_weights=True)
    assert shapes(workload) == {"input_ids": (1, 16)}
    assert any("sequence 16" in line for line in workload.assumptions)


def test_a_padding_token_is_never_drawn():
    workload = load(LLAMA.replace("vocab_size=120", "vocab_size=3,pad_token_id=2"), random_weights=True, seq=200)
    assert set(workload.cases[0].kwargs["input_ids"].unique().tolist()) == {0, 1}


def test_a_local_folder_is_loaded_with_its_weights_and_its_path_becomes_absolute(tmp_path, monkeypatch):
    made = load(LLAMA, random_weights=True, seq=8)
    made.model.save_pretrained(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    workload = load("hf:./mine", seq=8)
    assert workload.name == "mine"
    assert workload.target == f"hf:{tmp_path / 'mine'}"
    assert torch.equal(outputs(workload).logits, outputs(made).logits)
    assert any("checkpoint" in line for line in workload.assumptions)


def test_a_local_folder_without_weights_will_do_where_they_are_random(tmp_path):
    made = load(LLAMA, random_weights=True, seq=8)
    made.model.config.save_pretrained(tmp_path)
    assert torch.equal(outputs(load(f"hf:{tmp_path}", random_weights=True, seq=8)).logits, outputs(made).logits)
    with pytest.raises(ModelInvalid):
        load(f"hf:{tmp_path}", seq=8)


def test_a_model_that_brings_code_is_refused_and_its_code_does_not_run(tmp_path):
    config = {"model_type": "unheard_of", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_own.py").write_text("open('ran', 'w')\nraise SystemExit(3)\n")
    with pytest.raises(RemoteCode, match="--trust-remote-code"):
        load(f"hf:{tmp_path}", random_weights=True)


def test_a_hub_that_can_not_be_reached_is_said_to_be(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable, match="nobody/nothing"):
        load("hf:nobody/nothing", random_weights=True)


def test_a_gated_model_is_said_to_be_gated():
    from huggingface_hub.errors import GatedRepoError

    gated = GatedRepoError.__new__(GatedRepoError)
    with pytest.raises(GatedModel, match="gated"), _hub("some/model", "hf:some/model"):
        raise OSError("You are trying to access a gated repo.") from gated
