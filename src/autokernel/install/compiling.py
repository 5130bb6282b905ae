"""`torch.compile` for several variants of one model in one process.

Dynamo keeps compiled code per Python code object and stops after eight entries, counting those of other backends: the
ninth install of a model would run eager without a word. `isolate_recompiles` (torch 2.12 on) gives each call of
torch.compile a cache of its own; before that, a wrapper with a fresh code object does it for models without breaks.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Literal

import torch

Mode = Literal["eager", "default", "max-autotune"]
MODES: tuple[Mode, ...] = ("eager", "default", "max-autotune")
BASELINES: dict[Mode, str] = {"eager": "eager", "default": "torch.compile", "max-autotune": "max-autotune"}

# CUDA graphs don't exist on the CPU; on a device that has them they are a baseline of their own.
_TORCH_MODE = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}


def compile_alone(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, **options)` whose compiled code is shared with no other call."""
    compiler: Callable[..., Any] = torch.compile
    if "isolate_recompiles" in inspect.signature(compiler).parameters:
        compiled: Callable[..., Any] = compiler(model, isolate_recompiles=True, **options)
    else:
        compiled = compiler(_fresh(model), **options)
    return compiled


def baseline(model: Callable[..., Any], mode: Mode, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """The model as a user would run it without autokernel: as it is, or compiled whole.

    dynamic=False compiles every shape for itself, as `install` does: the fair baseline where several will come.
    """
    if mode == "eager":
        return model
    return compile_alone(model, mode=_TORCH_MODE[mode], dynamic=dynamic)


def inductor_patches(mode: Mode) -> dict[str, Any]:
    """Inductor's settings for a mode, for `compile_fx(..., config_patches=...)`."""
    name = _TORCH_MODE[mode]
    if name is None:
        return {}
    from torch._inductor import list_mode_options

    return dict(list_mode_options(name))


def _fresh(model: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
