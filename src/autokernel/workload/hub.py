"""Targets `hf:NAME`: models of the transformers library, with example inputs made from their configuration.

    hf:meta-llama/Llama-3.2-1B          a name on the hub
    hf:./my-model                       a local folder (config.json, and weights unless they are random)
    hf:LlamaConfig                      a configuration class with its defaults; hf:LlamaForCausalLM, a model class
    hf:LlamaConfig(hidden_size=512)     ... with other values; literals only, nothing is evaluated

The last two need `--random-weights`, with which nothing is downloaded. Code from the hub is never run unless
`trust_remote_code` says so. Prefill is a forward pass over the whole sequence without a cache; decode is one step of
one token with a static cache that already holds the rest of the sequence.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autokernel.errors import GatedModel, HubUnreachable, MissingExtra, ModelInvalid, RemoteCode
from autokernel.workload import SEED, Example
from autokernel.workload.failures import user_code

_OF_TASK = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "IMAGE_CLASSIFICATION")
_NO_DECODER = ("MASKED_LM", "TEXT_ENCODING")  # encoders that could also be used as decoders
_IMAGE, _CHANNELS = 224, 3

Inputs = dict[str, Tensor]


def load_hub(
    name: str, target: str, example: Example, device: torch.device, dtype: torch.dtype | None
) -> tuple[nn.Module, Inputs, str, list[str]]:
    """Model (on the device), keyword inputs, a short name, and what was assumed.

    Raises MissingExtra, ModelInvalid, TargetFailed, HubUnreachable, GatedModel, RemoteCode, OutOfMemory.
    """
    _transformers()
    config, kind = _configured(name, target, example)
    chosen = kind or _class_for(config)
    assumed = [f"model class {chosen.__name__}"]
    model = _model(chosen, config, name, target, example, device, dtype)
    torch.manual_seed(SEED)  # the same inputs whether weights were drawn or loaded
    inputs = _inputs(model, config, target, example, device, assumed)
    if example.phase == "decode":
        model, inputs = _decoding(model, config, target, inputs)
        assumed.append(f"one decode step at position {example.seq - 1}, its cache in a static buffer")
    label = type(config).__name__.removesuffix("Config") if _is_class(name) else Path(name).name
    return model, inputs, label, assumed


# --- which model ------------------------------------------------------------------------------------------------------


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        what = "A target of the form hf:NAME"
        raise MissingExtra(what=what, package="transformers", install="autokernel-torch[hf]") from error
    return transformers


def _is_class(name: str) -> bool:
    """Whether a name is that of a class, with or without arguments: a folder of that name comes first."""
    return not Path(name).exists() and "/" not in name.partition("(")[0] and name[:1].isupper()


def _configured(name: str, target: str, example: Example) -> tuple[Any, Any]:
    """The configuration, and the model class where it was named."""
    if _is_class(name):
        found = _class_named(name, target)
        if not example.random_weights:
            detail = "a class has no weights of its own; add --random-weights, or name a model of the hub"
            raise ModelInvalid(target=target, detail=detail)
        return found
    from transformers import AutoConfig

    with _hub(name, target):
        return AutoConfig.from_pretrained(name, trust_remote_code=example.trust_remote_code), None


def _class_named(name: str, target: str) -> tuple[Any, Any]:
    word, values = _parsed(name, target)
    kind: Any = getattr(_transformers(), word, None)
    config_class = getattr(kind, "config_class", None) or kind
    if not isinstance(kind, type) or not hasattr(config_class, "model_type"):
        detail = f"transformers has no configuration or model class {word}"
        raise ModelInvalid(target=target, detail=detail)
    with user_code(target, f"building {config_class.__name__}"):
        config = config_class(**values)
    return config, None if kind is config_class else kind


def _parsed(name: str, target: str) -> tuple[str, dict[str, Any]]:
    """ "LlamaConfig(hidden_size=512)" → ("LlamaConfig", {"hidden_size": 512})."""
    try:
        tree = ast.parse(name, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            values = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords if word.arg is not None}
            if len(values) == len(tree.keywords):
                return tree.func.id, values
    except (SyntaxError, ValueError):
        pass
    raise ModelInvalid(target=target, detail=f"{name!r} is not a class name, or Name(value=literal, ...)")


def _class_for(config: Any) -> Any:
    """The checkpoint's own class; else the usual one for its kind of model, without a head for plain encoders."""
    transformers = _transformers()
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    from transformers.models.auto import modeling_auto as auto

    def named(task: str) -> str | None:
        found = getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(config.model_type)
        return found if isinstance(found, str) else (found[0] if found else None)

    encoder = not config.is_encoder_decoder and any(named(task) for task in _NO_DECODER)
    if not encoder or getattr(config, "is_decoder", False):
        for task in _OF_TASK:
            if name := named(task):
                return getattr(transformers, name)
    plain = auto.MODEL_MAPPING_NAMES.get(config.model_type)
    return getattr(transformers, plain if isinstance(plain, str) else plain[0]) if plain else transformers.AutoModel


def _model(
    chosen: Any, config: Any, name: str, target: str, example: Example, device: torch.device, dtype: torch.dtype | None
) -> nn.Module:
    """On its device, in eval mode. Random weights are drawn where they will be used."""
    if example.random_weights:
        config.dtype = dtype or config.dtype or torch.float32
        with user_code(target, "building the model"), _default_dtype(config.dtype), device:
            made = chosen.from_config(config) if hasattr(chosen, "from_config") else chosen(config)
        model: nn.Module = made
    else:
        more = {"trust_remote_code": example.trust_remote_code} if example.trust_remote_code else {}
        with user_code(target, "loading the model"), _hub(name, target):
            model = chosen.from_pretrained(name, config=config, dtype=dtype or "auto", **more)
    with user_code(target, "moving the model to its device"):
        return model.to(device).eval()


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _hub(name: str, target: str) -> Iterator[None]:
    """What the hub answers, as errors of ours. The library's retries and warnings stay out of the terminal."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        with _quiet():
            yield
    except (OSError, ValueError) as error:
        kinds, words = causes(error), str(error)

        def has(kind: type[Exception]) -> bool:
            return any(isinstance(one, kind) for one in kinds)

        if has(GatedRepoError) or "gated repo" in words:
            raise GatedModel(name=name) from error
        if isinstance(error, ValueError) and "trust_remote_code" in words:
            raise RemoteCode(name=name) from error
        if has(RepositoryNotFoundError):
            raise ModelInvalid(target=target, detail=f"the hub has no public model {name}") from error
        if not Path(name).exists() and (has(LocalEntryNotFoundError) or "couldn't connect" in words):
            raise HubUnreachable(name=name) from error
        raise ModelInvalid(target=target, detail=words.strip().splitlines()[0] if words else repr(error)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without a line for each of the library's retries."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def causes(error: BaseException | None) -> list[BaseException]:
    """An exception and what led to it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


# --- its inputs -------------------------------------------------------------------------------------------------------


def _inputs(model: Any, config: Any, target: str, example: Example, device: torch.device, assumed: list[str]) -> Inputs:
    """Keyword inputs for one call. Tokens are drawn from the whole vocabulary, images and sound from a normal."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    name = model.main_input_name
    draw = {"device": device, "dtype": model.dtype}
    inputs: dict[str, Any]
    if name == "input_ids":
        inputs = {"input_ids": _tokens(text, example.batch, _length(text, target, example, assumed), device)}
    elif name == "pixel_values":
        size = _image_size(config, example)
        inputs = {name: torch.randn(example.batch, getattr(config, "num_channels", _CHANNELS), *size, **draw)}
    elif name == "input_features" and hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        inputs = {name: torch.randn(example.batch, config.num_mel_bins, frames, **draw)}
    else:
        detail = f"what {type(model).__name__} takes as {name} is not known here"
        raise ModelInvalid(target=target, detail=f"{detail}; use `file.py:name` with a function that makes its inputs")
    if config.is_encoder_decoder and hasattr(model, "get_decoder"):
        length = min(example.seq, getattr(config, "max_target_positions", example.seq))
        inputs["decoder_input_ids"] = _tokens(text, example.batch, length, device)
    if example.phase == "prefill" and hasattr(config, "use_cache"):
        inputs["use_cache"] = False
        assumed.append("use_cache=False, no attention mask: no padding")
    return inputs


def _tokens(config: Any, batch: int, length: int, device: torch.device) -> Tensor:
    """Any tokens but the padding one, which some models treat apart."""
    tokens = torch.randint(0, config.vocab_size, (batch, length), device=device)
    padding = getattr(config, "pad_token_id", None)
    if padding is None:
        return tokens
    return torch.where(tokens == padding, (padding + 1) % config.vocab_size, tokens)


def _length(config: Any, target: str, example: Example, assumed: list[str]) -> int:
    most = getattr(config, "max_position_embeddings", None) or example.seq
    if example.seq <= most:
        return example.seq
    if example.chosen_seq:
        raise ModelInvalid(target=target, detail=f"--seq {example.seq} is more than its {most} positions")
    assumed.append(f"sequence {most}: all the positions it has")
    return int(most)


def _image_size(config: Any, example: Example) -> tuple[int, int]:
    size = example.image or getattr(config, "image_size", None) or _IMAGE
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


# --- one step of decoding ---------------------------------------------------------------------------------------------


class DecodeStep(nn.Module):
    """One token with a static cache that holds the tokens before it: `forward(input_ids)` → logits.

    The cache's tensors are buffers, written in place at the last position, the same one in every call.
    """

    def __init__(self, model: nn.Module, cache: Any, position: int) -> None:
        super().__init__()
        self.model, self.cache, self.cache_name = model, cache, _cache_name(model)
        self.register_buffer("position", cache.layers[0].cumulative_length.new_full((), position), persistent=False)
        for number, layer in enumerate(cache.layers):
            self.register_buffer(f"keys_{number}", layer.keys, persistent=False)
            self.register_buffer(f"values_{number}", layer.values, persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        position = self.get_buffer("position")
        for number, layer in enumerate(self.cache.layers):
            layer.keys, layer.values = getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")
            layer.cumulative_length = position.clone()  # the library moves it on, in place
        logits: Tensor = self.model(input_ids, use_cache=True, **{self.cache_name: self.cache}).logits
        return logits


def _cache_name(model: nn.Module) -> str:
    """What the model's forward calls its cache: newer versions of the library have another name for it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _decoding(model: nn.Module, config: Any, target: str, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """The model after all tokens but the last, and that one."""
    from transformers import StaticCache

    tokens = inputs.get("input_ids")
    if tokens is None or config.is_encoder_decoder or not hasattr(config, "num_attention_heads"):
        detail = "--workload decode needs a decoder-only language model with attention"
        raise ModelInvalid(target=target, detail=detail)
    length = tokens.shape[1]
    if length < 2:
        raise ModelInvalid(target=target, detail="--workload decode needs --seq 2 or more")
    cache: Any = StaticCache(config=config.get_text_config(), max_cache_len=length)
    with user_code(target, "filling the cache"), torch.no_grad():
        model(tokens[:, :-1], use_cache=True, **{_cache_name(model): cache})
    if not all(hasattr(layer, "cumulative_length") and not layer.is_sliding for layer in cache.layers):
        raise ModelInvalid(target=target, detail="its cache has layers with a sliding window; they are not supported")
    return DecodeStep(model, cache, length - 1), {"input_ids": tokens[:, -1:].contiguous()}
