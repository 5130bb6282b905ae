"""New strides of a node are followed through its readers, and refused where a reader needs the old ones."""

import pytest
import torch

from autokernel.rewrite.relayout import change_layout

aten = torch.ops.aten
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
NAMESPACE = "autokernel_test_relayout"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("kernel(Tensor x) -> Tensor", tags=(torch.Tag.needs_exact_strides,))
_library.impl("kernel", lambda x: x * 2, "CompositeExplicitAutograd")


def transposed(node):
    """The node's fake with the strides of (0, 2, 1)-ordered memory."""
    with node.meta["val"].fake_mode:
        return torch.empty(2, 4, 3).transpose(1, 2)


def changed(traced, rest):
    """A graph of a product and `rest`; whether the product's strides could be changed; the graph."""
    module = traced(lambda x: rest(x * 2), X)
    node = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]
    return node, change_layout(node, transposed(node)), module


FOLLOWED = {
    "a copy ends it": lambda y: y.clone(memory_format=torch.contiguous_format).view(6, 4),
    "pointwise, then a copy": lambda y: (y + 1).clone(memory_format=torch.contiguous_format),
    "a reduction": lambda y: y.sum(-1),
    "parts": lambda y: [part.clone(memory_format=torch.contiguous_format) for part in y.split(2, -1)],
}
REFUSED = {
    "an output": lambda y: y,
    "an output seen through a view": lambda y: y.transpose(0, 1),
    "a view that does not exist": lambda y: y.view(6, 4).sum(),
    "a kernel": lambda y: torch.ops.autokernel_test_relayout.kernel(y).sum(),
    "memory read by its strides": lambda y: torch.as_strided(y, (4,), (5,)).sum(),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_readers_that_take_any_strides_are_followed(name, traced):
    node, done, _ = changed(traced, FOLLOWED[name])
    assert done
    assert node.meta["val"].stride() == (12, 1, 3)


@pytest.mark.parametrize("name", REFUSED)
def test_readers_that_need_their_strides_are_respected(name, traced, honest_run):
    node, done, module = changed(traced, REFUSED[name])
    assert not done
    assert node.meta["val"].stride() == (12, 4, 1)
    honest_run(module, X)


def test_the_same_strides_always_fit(traced):
    module = traced(lambda x: x * 2, X)
    node = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]
    assert change_layout(node, node.meta["val"])
