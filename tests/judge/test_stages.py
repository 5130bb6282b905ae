"""Which sizes, values and layouts a kernel meets, and what is said when it gives way at one of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from autokernel.graph.lower import lower
from autokernel.judge.bench import open_sandbox
from autokernel.judge.cases import Cases, serves
from autokernel.judge.children import Kernel
from autokernel.judge.seeds import Seeds
from autokernel.judge.stages import LARGE_ELEMENTS, STAGES, Failed, Stages, adds_in_any_order, elements, reduced, sweep
from autokernel.records import Dim, Reason, Role, Stage, Task, TensorSpec
from autokernel.task import LoadedTask
from autokernel.task.dims import discover


def reference(x, w):
    return (F.rms_norm(x, (x.shape[-1],), w, 1e-5),)


def rounding(x, w):
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w,)


def loaded(rows=16, columns=64, dtype="float32", reference=reference) -> LoadedTask:
    def spec(name, shape, role=Role.activation):
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        return TensorSpec(name=name, dtype=dtype, shape=shape, stride=stride, role=role)

    task = Task(
        id="01-t",
        title="t",
        fingerprint="f",
        shape_key="s",
        inputs=(spec("x", (rows, columns)), spec("w", (columns,), Role.parameter)),
        outputs=(spec("out", (rows, columns)),),
    )
    kind = getattr(torch, dtype)
    module = lower(reference, [torch.empty(rows, columns, dtype=kind), torch.empty(columns, dtype=kind)])
    bare = LoadedTask(task, reference, module, None)
    return LoadedTask(discover(bare), reference, module, None)


LAUNCH = """
import torch

def launch(x, w, out):
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    torch.mul(x * scale, w, out=out)
    {more}
"""


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox(threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def cases():
    return Cases(loaded(), Seeds.fresh())


def stages(sandbox, cases, source):
    bounds = serves(source, cases.task)
    assert isinstance(bounds, dict)
    return Stages(cases, sandbox, Kernel("source", source), bounds, deadline=10)


def failure(sandbox, cases, source) -> tuple[Stage, Failed]:
    run = stages(sandbox, cases, source)
    for stage in STAGES:
        try:
            run.run(stage)
        except Failed as failed:
            return stage, failed
    raise AssertionError("every stage passed")


def test_a_right_kernel_passes_every_stage_and_each_says_what_it_did(sandbox, cases):
    run = stages(sandbox, cases, LAUNCH.format(more=""))
    results = {stage: run.run(stage) for stage in STAGES}
    assert all(result.status == "passed" for result in results.values())
    assert "s0=0" in results[Stage.shapes].detail
    assert "subnormal" in results[Stage.stability].detail
    assert "noncontiguous" in results[Stage.edges].detail
    assert run.warnings == [] and len(run.comparisons) > 15 and run.peak_memory > 0


@pytest.mark.parametrize(
    ("more", "stage", "reason", "words"),
    [
        ("if x.shape[0] == 17: out[16] = 0", Stage.shapes, Reason.wrong_values, "s0=17"),
        ("if x.shape[0] == 1: out.fill_(0)", Stage.shapes, Reason.wrong_values, "s0=1"),
        ("if float(x.abs().max()) > 500: out.fill_(1)", Stage.stability, Reason.wrong_values, "large"),
        ("out.nan_to_num_(0)", Stage.stability, Reason.wrong_special_values, "nan"),
        ("if x.isinf().any(): out.fill_(0)", Stage.stability, Reason.wrong_special_values, "inf"),
        ("if x.storage_offset(): out.fill_(0)", Stage.edges, Reason.wrong_values, "offset"),
    ],
)
def test_a_kernel_that_gives_way_is_told_where(sandbox, cases, more, stage, reason, words):
    found, failed = failure(sandbox, cases, LAUNCH.format(more=more))
    assert (found, failed.reason) == (stage, reason), failed.explanation
    assert words in failed.explanation


def test_a_missing_eps_is_found_by_tiny_values(sandbox, cases):
    stage, failed = failure(sandbox, cases, LAUNCH.format(more="").replace("1e-5", "1e-8"))
    assert failed.reason is Reason.wrong_values and stage in (Stage.smoke, Stage.stability)


def test_a_kernel_that_cannot_be_loaded_says_so(sandbox, cases):
    stage, failed = failure(sandbox, cases, "def launch(x, w, out):\n    pass\n\nraise RuntimeError('no')")
    assert stage is Stage.smoke and failed.loading and failed.reason is Reason.exception
    assert "no" in failed.explanation


def test_wrong_values_for_strides_that_guards_keep_away_are_a_warning(sandbox, cases):
    run = stages(sandbox, cases, LAUNCH.format(more="if not x.is_contiguous(): out.fill_(0)"))
    assert run.run(Stage.edges).status == "passed"
    assert any("noncontiguous" in warning and "wrong values" in warning for warning in run.warnings)


def test_strides_may_be_refused_by_raising(sandbox, cases):
    run = stages(sandbox, cases, LAUNCH.format(more="assert x.is_contiguous()"))
    assert "noncontiguous refused" in run.run(Stage.edges).detail and run.warnings == []


def test_empty_tensors_may_be_refused_by_raising_but_other_sizes_may_not(sandbox, cases):
    detail = stages(sandbox, cases, LAUNCH.format(more="assert x.numel()")).run(Stage.shapes).detail
    assert "s0=0, s1=64 refused" in detail
    with pytest.raises(Failed, match="AssertionError"):
        stages(sandbox, cases, LAUNCH.format(more="assert x.shape[0] != 17")).run(Stage.shapes)


def test_only_the_sizes_a_kernel_serves_are_asked_of_it(sandbox, cases):
    source = LAUNCH.format(more="assert x.shape == (16, 64)")
    with pytest.raises(Failed):
        stages(sandbox, cases, source).run(Stage.shapes)
    assert stages(sandbox, cases, 'SERVES = "task"\n' + source).run(Stage.shapes).status == "passed"


def test_runs_that_differ_are_a_warning_only_where_something_adds_in_any_order(sandbox, cases):
    noise = "out.mul_(1 + 6e-8 * torch.randint(-1, 2, out.shape))"
    with pytest.raises(Failed, match="differ"):
        stages(sandbox, cases, LAUNCH.format(more=noise)).run(Stage.determinism)
    run = stages(sandbox, cases, LAUNCH.format(more=noise + "\nTEXT = 'reduction(+: total)'"))
    assert run.run(Stage.determinism).status == "passed"
    assert any("last bits" in warning for warning in run.warnings)


SKIPPING = """
import torch
calls = 0

def launch(x, w, out):
    global calls
    calls += 1
    if calls % 2 == {parity}:
        return
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    torch.mul(x * scale, w, out=out)
"""


@pytest.mark.parametrize("parity", [0, 1])
def test_a_kernel_that_skips_every_second_call_has_not_written(sandbox, cases, parity):
    stage, failed = failure(sandbox, cases, SKIPPING.format(parity=parity))
    assert (stage, failed.reason) == (Stage.smoke, Reason.not_written), failed.explanation


@pytest.mark.parametrize(
    ("third", "reason"),
    [
        ("out[3, 4] = 50.0", Reason.wrong_values),
        ("out[3, 4] = float('nan')", Reason.wrong_special_values),
        ("out[3, 4] *= 1.0000005", Reason.not_deterministic),
        ("x[0, 0] += 1", Reason.input_changed),
    ],
)
def test_a_run_that_differs_is_judged_itself_and_not_by_a_further_one(sandbox, cases, third, reason):
    source = LAUNCH.format(more=f"global calls\n    calls += 1\n    if calls == 3: {third}")
    run = stages(sandbox, cases, source.replace("import torch", "import torch\ncalls = 0"))
    with pytest.raises(Failed) as caught:
        run.run(Stage.determinism)
    assert caught.value.reason is reason, caught.value.explanation


@pytest.mark.parametrize(("function", "told"), [(rounding, False), (reference, True)])
def test_a_task_that_cannot_tell_the_next_lower_precision_is_marked(sandbox, function, told):
    """In bfloat16, where the reference rounds its row's scale itself; one that does not tells it by its rows."""
    wide = "x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * w.float()"
    source = f"import torch\n\ndef launch(x, w, out):\n    out.copy_({wide})\n"
    run = stages(sandbox, Cases(loaded(dtype="bfloat16", reference=function), Seeds.fresh()), source)
    run.run(Stage.smoke)
    assert any("lower precision" in warning for warning in run.warnings) is not told


def test_values_are_never_used_twice(cases):
    first, second = cases.make("a"), cases.make("b")
    assert not torch.equal(first.inputs[0], second.inputs[0])
    assert not torch.equal(first.expected[0].eager, second.expected[0].eager)


def test_a_changed_case_differs_in_a_few_elements_and_in_what_is_expected(cases):
    case = cases.make("a")
    changed = cases.changed(case)
    different = (case.inputs[0] != changed.inputs[0]).float().mean()
    assert 0 < float(different) < 0.2
    assert torch.equal(case.inputs[1], changed.inputs[1])
    assert not torch.equal(case.expected[0].eager, changed.expected[0].eager)


# --- sizes ------------------------------------------------------------------------------------------------------------


DIMS = {"s0": Dim(value=16, free=True, min=0), "s1": Dim(value=64, free=True, min=1), "s2": Dim(value=7)}
TASK = Task(id="01-t", title="t", fingerprint="f", shape_key="s", dims=DIMS, inputs=(), outputs=())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", {"s0": (0, None), "s1": (1, None)}),
        ('SERVES = "task"', {"s0": (16, 16), "s1": (64, 64)}),
        ('SERVES = {"s0": 16}', {"s0": (16, 16), "s1": (1, None)}),
        ('SERVES = {"s1": (8, 128)}', {"s0": (0, None), "s1": (8, 128)}),
        ('SERVES = {"s1": [0, None]}', {"s0": (0, None), "s1": (1, None)}),
        ('SERVES = {"s2": 7}', {"s0": (0, None), "s1": (1, None)}),
    ],
)
def test_what_a_file_serves_is_read_from_its_text(line, wanted):
    assert serves(line, TASK) == wanted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('SERVES = {"s0": 8}', "leaves out the task's own s0 = 16"),
        ('SERVES = {"s1": (65, None)}', "leaves out"),
        ('SERVES = {"s0": 0x' + "f" * 5000 + "}", "no size can be"),
        ('SERVES = {"rows": 8}', "the task's dims are s0, s1, s2"),
        ("SERVES = 3", "neither"),
        ("SERVES = sizes()", "neither"),
        ("SERVES = {[1]: 2}", "neither"),
        ('SERVES = {"s0": "all"}', "no size"),
    ],
)
def test_a_serves_that_excludes_the_task_or_means_nothing_is_refused(line, words):
    found = serves(line, TASK)
    assert isinstance(found, str) and words in found


@given(st.integers(0, 2**40), st.integers(0, 3), st.one_of(st.none(), st.integers(64, 300)))
def test_swept_sizes_stay_inside_what_is_served(seed, low, high):
    bounds = {"s0": (low, None), "s1": (1, high)}
    found = sweep(TASK, bounds, seed)
    assert found and all(one != {"s0": 16, "s1": 64} for one in found)
    for one in found:
        assert set(one) == {"s0", "s1"}
        assert one["s0"] >= low and one["s1"] >= 1 and (high is None or one["s1"] <= high)
    if low == 0:
        assert {"s0": 0, "s1": 64} in found
    assert {"s0": 17, "s1": 65 if high is None else min(65, high)} in found


def test_hidden_sizes_follow_the_seed():
    bounds = {"s0": (1, None), "s1": (1, None)}
    assert sweep(TASK, bounds, 1) == sweep(TASK, bounds, 1)
    assert any(sweep(TASK, bounds, 1) != sweep(TASK, bounds, seed) for seed in range(2, 6))


def test_a_kernel_for_one_shape_is_swept_over_none():
    assert sweep(TASK, {"s0": (16, 16), "s1": (64, 64)}, 1) == []


def test_a_large_task_is_reduced_by_the_dims_that_are_served():
    big = loaded(rows=4096, columns=256).task
    rows = big.inputs[0].dims[0]
    smaller = reduced(big, {rows: (0, None)}, 1 << 16)
    assert smaller == {rows: 256}
    assert reduced(big, {}, 1 << 16) is None
    assert elements(big) == 4096 * 256


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("SOURCE = '#pragma omp parallel for reduction(+: s)'", True),
        ("SOURCE = '#pragma omp atomic'", True),
        ("SOURCE = 'std::atomic<float> s;'", True),
        ("SOURCE = 'for (;;) s += x[i];'", False),
        ("tl.atomic_add(p, v)", True),
        ("x = 1  # no atomic_add(p, v) here", False),
        ("def launch(x):\n    'uses atomic_add(p, v)'\n", False),
        ("SOURCE = 'atomicAdd(p, v);'", True),
        ("SOURCE = 's += x[i]; // not atomicAdd(p, v)'", False),
        ("SOURCE = '/* reduction(+: s) */ s += x[i];'", False),
    ],
)
def test_atomics_and_parallel_sums_are_seen_in_the_source(source, wanted):
    assert adds_in_any_order(source) is wanted


# --- large tasks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_cases():
    return Cases(loaded(rows=300, columns=256), Seeds.fresh())


def test_a_large_task_meets_every_variant_at_its_own_size_row_by_row(sandbox, large_cases):
    assert elements(large_cases.task) > LARGE_ELEMENTS
    only_here = (
        "if x.shape == (300, 256) and float(x.abs().median(-1)[0].min()) < 1e-3: out[x.abs().amax(-1) < 1e-3] = 0"
    )
    with pytest.raises(Failed, match="assorted"):
        stages(sandbox, large_cases, LAUNCH.format(more=only_here)).run(Stage.stability)


def test_a_large_task_is_also_tried_at_a_smaller_size_if_the_kernel_serves_it(sandbox, large_cases):
    detail = stages(sandbox, large_cases, LAUNCH.format(more="")).run(Stage.stability).detail
    assert "assorted" in detail and "; at s0=" in detail
    pinned = stages(sandbox, large_cases, 'SERVES = "task"\n' + LAUNCH.format(more="")).run(Stage.stability).detail
    assert "; at" not in pinned


def test_other_layouts_of_the_same_values_need_no_other_oracle(cases):
    case = cases.make("offset", "offset")
    other = cases.relaid(case, "noncontiguous")
    assert torch.equal(case.inputs[0], other.inputs[0]) and not other.inputs[0].is_contiguous()
    assert other.expected is case.expected
