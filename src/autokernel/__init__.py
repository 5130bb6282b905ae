"""autokernel: profile a PyTorch model, write faster kernels for where its time goes, prove the result.

    run = autokernel.optimize(model, args, kwargs)
    faster = run.apply(model)

    faster = autokernel.Run.load("runs/llama_mini-20260101").apply(model)
    faster = torch.compile(model, backend=autokernel.backend(run))

Nothing heavy is imported until one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autokernel.api import Run as Run
    from autokernel.api import backend as backend
    from autokernel.api import optimize as optimize

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "backend", "optimize"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "backend", "optimize"):
        from autokernel import api

        return getattr(api, name)
    raise AttributeError(f"module 'autokernel' has no attribute '{name}'")
