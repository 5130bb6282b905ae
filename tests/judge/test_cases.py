"""What a kernel is asked a second time: other values at the same addresses, wherever a caller may change them."""

import torch

from autokernel.graph.lower import lower
from autokernel.judge.cases import Cases
from autokernel.judge.seeds import Seeds
from autokernel.records import Role, Task, TensorSpec
from autokernel.task import LoadedTask

SPECS = (
    TensorSpec(name="x", dtype="float32", shape=(8, 32), stride=(32, 1)),
    TensorSpec(name="mask", dtype="bool", shape=(8, 32), stride=(32, 1), role=Role.mask, domain="bool"),
    TensorSpec(name="index", dtype="int64", shape=(8, 4), stride=(4, 1), role=Role.index, domain="index", high=32),
    TensorSpec(name="weight", dtype="float32", shape=(32,), stride=(1,), role=Role.parameter),
)


def pick(x, mask, index, weight):
    return (torch.where(mask, x * weight, 0.0).gather(1, index),)


def test_a_changed_case_has_other_activations_masks_and_indices_and_the_same_weights():
    examples = [torch.zeros(8, 32), torch.ones(8, 32, dtype=torch.bool), torch.zeros(8, 4, dtype=torch.long)]
    examples.append(torch.ones(32))
    out = TensorSpec(name="out", dtype="float32", shape=(8, 4), stride=(4, 1))
    task = Task(id="00-pick", title="pick", fingerprint="f", shape_key="s", inputs=SPECS, outputs=(out,))
    cases = Cases(LoadedTask(task, pick, lower(pick, examples), None), Seeds.fresh())
    case = cases.make("first")
    changed = cases.changed(case)
    same = [torch.equal(one, other) for one, other in zip(case.inputs, changed.inputs, strict=True)]
    assert same == [False, False, False, True]
    assert 0 < (case.inputs[0] != changed.inputs[0]).float().mean() < 0.5
    assert torch.equal(changed.expected[0].eager, pick(*changed.inputs)[0])
