"""Everything a call of the model can be seen to do: its outputs, and the inputs and buffers it changes.

Each observation starts from the same state: inputs are cloned, and buffers are put back afterwards, so that variants
sharing one set of weights (eager, compiled, installed) can be compared in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autokernel.profile.state import clone, keeping_buffers, named_buffers, same
from autokernel.workload import Case

Observed = dict[str, Tensor]


def observe(call: Callable[..., Any], model: Any, case: Case) -> Observed:
    """Run `call` once on clones of the case's inputs; `model` owns the buffers. Tensors by name, detached copies.

    Names: "output", "output[0]", "output.logits"; "input[0]" and "buffer running_mean" where the call changed them.
    """
    arguments = clone((case.args, case.kwargs))
    before = clone(arguments)
    with keeping_buffers(model) as buffers, torch.no_grad():
        result = call(*arguments[0], **arguments[1])
        seen = _named("output", result)
        changed = _changed("input", before, arguments)
        moved = {
            f"buffer {name}": buffer.detach().clone()
            for name, buffer in named_buffers(model)
            if not same(buffer, buffers[name])
        }
        # cloned before the buffers are put back: an output may be a view of one
        return {name: value.detach().clone() for name, value in {**seen, **changed, **moved}.items()}


def _named(name: str, tree: Any) -> Observed:
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {name + pytree.keystr(path): leaf for path, leaf in leaves if isinstance(leaf, Tensor)}


def _changed(name: str, before: Any, after: Any) -> Observed:
    was, now = _named(name, before), _named(name, after)
    return {key: value for key, value in now.items() if not same(value, was[key])}


def fresh(case: Case, seed: int) -> Case:
    """The same kind of inputs with values not seen before: each tensor's own elements, shuffled.

    Shuffling keeps every value inside its domain (token ids, class indices, distributions). Left alone: bool tensors,
    tensors holding infinities (masks), and sorted integers (positions, lengths), whose order is their meaning.
    """
    generator = torch.Generator().manual_seed(seed)

    def shuffle(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dtype == torch.bool or leaf.numel() < 2:
            return leaf
        flat = leaf.detach().reshape(-1)
        if leaf.is_floating_point():
            if not bool(torch.isfinite(flat).all()):
                return leaf
        elif leaf.is_complex() or bool((flat[1:] >= flat[:-1]).all()):
            return leaf
        mixed = leaf.detach().clone()
        mixed.copy_(flat[torch.randperm(flat.numel(), generator=generator)].reshape(leaf.shape))
        return mixed

    args, kwargs = pytree.tree_map(shuffle, (case.args, case.kwargs))
    return Case(args, kwargs, case.weight)
