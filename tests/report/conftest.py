"""Records of a run as the journal and the proof hold them, for the reports to be written from."""

import random

import pytest

from autokernel.records import (
    BaselineRow,
    Ceilings,
    LineRow,
    OutputRow,
    Profile,
    Proof,
    RegionRow,
    RunConfig,
    Task,
    TensorSpec,
    Trial,
    WinnerRow,
)
from autokernel.report import RunView

TITLES = {
    "01-add-rms-norm": ("add → rms norm", 8, 0.084),
    "02-silu-mul": ("silu → mul", 4, 0.071),
    "03-add-softmax": ("div → add → softmax", 4, 0.062),
    "04-rotary": ("mul → neg → cat → mul → add (rotary)", 8, 0.055),
    "05-repeat": ("unsqueeze → expand → clone", 8, 0.021),
}


def region(title, share, *, task=None, occurrences=4, generator=None, reason="", total=20_000.0):
    time = share * total
    return RegionRow(
        task=task,
        fingerprint=f"f-{title}",
        shape_key="s",
        title=title,
        kind="row" if generator else "other",
        occurrences=occurrences,
        time_us=time,
        share=share,
        floor_us=0.4 * time,
        recoverable_us=0.6 * time,
        flops=1_000_000,
        min_bytes=1_000_000,
        generator=generator,
        reason=reason,
    )


@pytest.fixture
def profile():
    rows = [region(t, s, task=k, occurrences=n, generator="row") for k, (t, n, s) in TITLES.items()]
    library = "a matrix product: the library's kernel is kept"
    rows += [
        region("linear", 0.52, occurrences=29, reason=library),
        region("matmul", 0.12, occurrences=8, reason=library),
        region("embedding", 0.03, occurrences=1, reason="gather is not generated yet"),
    ]
    return Profile(
        target="examples/llama_mini.py",
        device="cpu",
        threads=2,
        total_us=20_400.0,
        uninstrumented_us=20_000.0,
        attributed=0.984,
        regions=tuple(rows),
        lines=(
            LineRow(line="llama_mini.py:82  return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))",
                    time_us=9_000.0, share=0.45),
            LineRow(line="llama_mini.py:61  weights = F.softmax(scores + mask, dim=-1)", time_us=1_240.0, share=0.062),
        ),
        skipped=("graph 2: autocast region [no graph]",),
        ceilings=Ceilings(device="cpu", threads=2, bandwidth=((4096, 1e10),), matrix={"float32": 1e11},
                          measured_at="2026-01-01"),
    )  # fmt: skip


@pytest.fixture
def tasks():
    spec = TensorSpec(name="x", dtype="float32", shape=(4, 8), stride=(8, 1))
    return tuple(
        Task(id=name, title=title, fingerprint=f"f-{title}", shape_key="s", inputs=(spec,), outputs=(spec,))
        for name, (title, _, _) in TITLES.items()
    )


def trial(number, task, speedup=None, *, kept=False, correctness="PASS", reason="below the minimal gain", spread=0.02):
    return Trial(
        experiment=number,
        tag=task,
        kernel_type="row",
        correctness=correctness,
        task=task,
        decision="kept" if kept else "reverted",
        reason="better" if kept else reason,
        speedup_vs_incumbent=speedup,
        ci_low=None if speedup is None else speedup * (1 - spread),
        ci_high=None if speedup is None else speedup * (1 + spread),
        commit=f"{number:07x}",
        proposer="search",
        description=f"rows={number % 4 + 1} vector=8",
        seconds=1.5,
        finished_at="2026-01-01T00:00:00Z",
    )


@pytest.fixture
def make_trial():
    return trial


@pytest.fixture
def trials():
    """Seventy experiments over four tasks, with the shape real searches have: a few large steps, then none."""
    draw = random.Random(3)
    best = dict.fromkeys(list(TITLES)[:4], 1.0)
    made = []
    for number in range(1, 71):
        task = list(best)[(number // 6) % 4]
        if draw.random() < 0.1:
            made.append(trial(number, task, correctness="FAIL", reason="wrong_values"))
            continue
        ratio = draw.uniform(0.5, 1.7) if best[task] < 1.6 else draw.uniform(0.4, 1.01)
        kept = ratio > 1.02
        best[task] *= ratio if kept else 1
        made.append(trial(number, task, ratio, kept=kept))
    return tuple(made)


@pytest.fixture
def proof():
    return Proof(
        result="gain",
        recommended="autokernel",
        compiled_as="torch.compile",
        ours_ms=15.1,
        pairs=24,
        best_baseline="torch.compile",
        baselines=(
            BaselineRow(name="eager", ms=20.0, ratio=1.32, ci_low=1.29, ci_high=1.35),
            BaselineRow(name="torch.compile", ms=15.6, ratio=1.03, ci_low=1.01, ci_high=1.05),
            BaselineRow(name="max-autotune", ms=15.2, ratio=1.01, ci_low=0.99, ci_high=1.03),
        ),
        outputs=(
            OutputRow(name="0", max_error=3.1e-6, eager_max_error=2.9e-6, worst=0.41, top1_agreement=1.0, passed=True),
        ),
        winners=(
            WinnerRow(task="01-add-rms-norm", title="add → rms norm", occurrences=8, engaged=8, speedup_alone=2.1,
                      in_model=1.04, ci_low=1.02, ci_high=1.06, kept=True),
            WinnerRow(task="02-silu-mul", title="silu → mul", occurrences=4, engaged=4, speedup_alone=1.6,
                      in_model=0.99, ci_low=0.98, ci_high=1.01, kept=False, note="does not pay in the model"),
        ),
        finished_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


@pytest.fixture
def view(tmp_path, profile, tasks, trials, proof):
    config = RunConfig(target="examples/llama_mini.py", name="llama_mini")
    return RunView(
        path=tmp_path / "llama_mini-1", config=config, profile=profile, tasks=tasks, trials=trials, proof=proof
    )
