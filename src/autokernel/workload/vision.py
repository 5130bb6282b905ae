"""Targets `timm:NAME`: models of the timm library with an image of the size they were made for.

`timm:resnet50`, `timm:vit_base_patch16_224`, or a name with a tag (`timm:convnext_base.fb_in22k`). With random weights
nothing is downloaded.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import nn

from autokernel.errors import BrokenExtra, HubUnreachable, MissingExtra, ModelInvalid
from autokernel.workload import SEED, Example
from autokernel.workload.failures import user_code

_SIMILAR = 4  # names that are suggested


def load_timm(
    name: str, target: str, example: Example, device: torch.device, dtype: torch.dtype | None
) -> tuple[nn.Module, dict[str, torch.Tensor], str, list[str]]:
    """Model (on the device, in eval mode), keyword inputs, a short name, and what was assumed.

    Raises MissingExtra, BrokenExtra, ModelInvalid, TargetFailed, HubUnreachable, OutOfMemory.
    """
    timm = _timm()
    if not timm.is_model(name.partition(".")[0]):
        raise ModelInvalid(target=target, detail=f"timm has no model {name}{_suggestion(timm, name)}")
    if example.phase != "prefill":
        raise ModelInvalid(target=target, detail="--workload decode is for language models")
    model = _created(timm, name, target, example, device)
    with user_code(target, "moving the model to its device"):
        model = model.to(device=device, dtype=dtype).eval()
    channels, height, width = _size(model, example)
    kind = next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)
    torch.manual_seed(SEED)  # the same image whether weights were drawn or loaded
    image = torch.randn(example.batch, channels, height, width, device=device, dtype=kind)
    return model, {"x": image}, name.partition(".")[0], [f"image {height}×{width}"]


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        if getattr(error, "name", "") != "timm":
            raise _broken(error) from error
        what = "A target of the form timm:NAME"
        raise MissingExtra(what=what, package="timm", install="autokernel-torch[vision]") from error
    except RuntimeError as error:  # torchvision's operators, built for another torch
        raise _broken(error) from error
    return timm


def _broken(error: Exception) -> BrokenExtra:
    remedy = (
        "timm needs a torchvision that was built for the same torch (for the CPU build of torch: the CPU build of "
        "torchvision, from the same index)."
    )
    return BrokenExtra(package="timm", detail=str(error).strip().splitlines()[0], remedy=remedy)


def _suggestion(timm: Any, name: str) -> str:
    close = difflib.get_close_matches(name, timm.list_models(), _SIMILAR)
    return f"; close to it: {', '.join(close)}" if close else ""


def _created(timm: Any, name: str, target: str, example: Example, device: torch.device) -> nn.Module:
    more: dict[str, Any] = {}
    if example.image is not None and _takes_size(timm, name):
        more["img_size"] = example.image
    try:
        with device, user_code(target, "building the model"):
            model: nn.Module = timm.create_model(name, pretrained=not example.random_weights, **more)
    except Exception as error:
        if not example.random_weights and _unreached(error):
            raise HubUnreachable(name=name) from error
        raise
    return model


def _takes_size(timm: Any, name: str) -> bool:
    """Whether the size is part of the model (positions of a ViT's patches); convolutions take any."""
    config = timm.models.get_pretrained_cfg(name)
    return bool(config is not None and config.fixed_input_size)


def _unreached(error: BaseException | None) -> bool:
    from autokernel.workload.hub import causes

    kinds = ("LocalEntryNotFoundError", "ConnectionError", "ConnectError", "URLError", "OfflineModeIsEnabled")
    return any(type(one).__name__ in kinds for one in causes(error))


def _size(model: nn.Module, example: Example) -> tuple[int, int, int]:
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = config.get("input_size") or (3, 224, 224)
    return (channels, height, width) if example.image is None else (channels, example.image, example.image)
