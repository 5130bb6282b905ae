"""Small instances of the example models, captured once for all tests of the graph."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autokernel.graph import Capture
from autokernel.graph.capture import capture

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    known = f"_example_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


def _captured(name, init, *inputs) -> Capture:
    torch.manual_seed(0)
    model = example(name).Model(*init).eval()
    return capture(model, inputs)


@pytest.fixture(scope="session")
def llama() -> Capture:
    """Two layers, 64 wide, 4 query and 2 key/value heads, 24 tokens of at most 48."""
    return _captured("llama_mini", (96, 64, 2, 4, 2, 112, 48), torch.randint(0, 96, (1, 24)))


@pytest.fixture(scope="session")
def gpt2() -> Capture:
    tokens = torch.randint(0, 96, (2, 24))
    return _captured("gpt2_block", (96, 64, 4, 48), tokens, tokens.clone())


@pytest.fixture(scope="session")
def conv() -> Capture:
    return _captured("conv_net", (8, 10), torch.randn(2, 3, 12, 12))


@pytest.fixture(scope="session")
def captures(llama, gpt2, conv) -> dict[str, Capture]:
    return {"llama_mini": llama, "gpt2_block": gpt2, "conv_net": conv}
