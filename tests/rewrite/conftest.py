"""Graphs as they are captured, without a compiler behind them, and a look at what they promise of themselves."""

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.fixture(autouse=True, scope="package")
def one_thread_here():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Honest(fx.Interpreter):
    """Runs a graph for real and compares every node with its fake tensor: shape, strides, dtype."""

    def run_node(self, n):
        value = super().run_node(n)
        fake = n.meta.get("val")
        if isinstance(value, Tensor) and isinstance(fake, Tensor):
            ours, theirs = (
                (t.dtype, tuple(t.shape), [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1])
                for t in (fake, value)
            )
            assert ours == theirs, f"{n.name}: the graph says {ours}, it is {theirs}"
        return value


@pytest.fixture
def honest_run():
    """run(module, *inputs) -> outputs, with every node's `meta["val"]` checked."""

    def run(module, *inputs):
        with torch.no_grad():
            return Honest(module).run(*inputs)

    return run


@pytest.fixture
def traced():
    """traced(function, *inputs) -> the ATen graph before dispatch, attention whole, fake tensors in meta."""

    def trace(function, *inputs):
        with torch.no_grad():
            return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs)

    return trace
