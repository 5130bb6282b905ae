"""Honest kernels and mutants through the judge's comparison: how many of which are refused, by kind and dtype.

    python benchmarks/judge_mutants.py [--device cuda] [--repeats 2] [--rows "softmax bfloat16,rms norm float32"]

Kinds and mutants: those of `autokernel.testing.mutants` and a few more. Each kernel is sent through the inputs of the
judge's stages: two draws at the task's shape (smoke), other sizes (shapes), strained values (stability), a few values
changed (determinism). Layouts are left out: nothing here reads memory otherwise than PyTorch does. No kernel is
compiled and nothing is timed.

A mutant is left out where there is nothing to see, by a rule that isn't the judge's: on all inputs its results are the
honest kernel's bit for bit (an index off by one in rows of one element), or in no row is its RMS error more than twice
what eager's is in its worst row (a bfloat16 sum of few terms under a logarithm). The table says how many those were.
Sums in bfloat16 where the reference itself rounds what they scale before the output are shown but held to no limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from harness import Benchmark, Figures, Row, main, text_table
from torch import Tensor

from autokernel.judge.cases import Case, Cases, serves
from autokernel.judge.oracle import one_thread
from autokernel.judge.seeds import Seeds
from autokernel.judge.stages import sweep
from autokernel.judge.tolerance import compare
from autokernel.task.file import from_file
from autokernel.task.inputs import STABILITY
from autokernel.testing.mutants import KINDS, ORDERS, Kernel, Kind, Sum, in_bfloat16, sum_in_lanes

EXERCISES = ("judge/oracle.py", "judge/tolerance.py", "judge/cases.py", "task/*.py", "testing/mutants.py")
SHAPES = ((64, 200), (7, 1023), (33, 1), (1, 4096), (128, 257), (61, 31), (2, 127))
DTYPES = ("float32", "bfloat16", "float16")
MOST_HONEST, LEAST_MUTANTS = 0.005, 0.995
EAGERS = 2.0
ROUNDED_AGAIN = "sums in bfloat16, rounded again"

_FILE = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, {names}):
        return {body}


def get_inputs():
    return [{inputs}]
"""


# --- kinds beyond those that are shipped ------------------------------------------------------------------------------


def _llama_norm(total: Sum, eps: float = 1e-5) -> Kernel:
    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(total(wide * wide) / x.shape[-1] + eps)
        return (wide * scale).to(x.dtype) * weight

    return kernel


def _residual_norm(total: Sum) -> Kernel:
    """Two outputs: the sum and its norm."""

    def kernel(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        added = x.float() + y.float()
        scale = torch.rsqrt(total(added * added) / x.shape[-1] + 1e-5)
        return added.to(x.dtype), (added * scale * weight.float()).to(x.dtype)

    return kernel  # type: ignore[return-value]


def _variance(total: Sum, centred: bool = True) -> Kernel:
    def kernel(x: Tensor) -> Tensor:
        wide, width = x.float(), x.shape[-1]
        apart = wide - total(wide) / width if centred else wide
        return (total(apart * apart) / width).squeeze(-1).to(x.dtype)

    return kernel


def _cross_entropy(total: Sum, shifted: bool = True) -> Kernel:
    def kernel(x: Tensor, target: Tensor) -> Tensor:
        wide = x.float()
        most = wide.amax(-1, keepdim=True) if shifted else torch.zeros_like(wide[:, :1])
        loss = total((wide - most).exp()).log() - (wide - most).gather(1, target[:, None])
        return loss.squeeze(-1).to(x.dtype)

    return kernel


def _rotary(_: Sum) -> Kernel:
    def kernel(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return (x.float() * cos.float() + turned.float() * sin.float()).to(x.dtype)

    return kernel


def _relu(_: Sum, keeps_nan: bool = True) -> Kernel:
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        product = x.float() * y.float()
        keeps = (product > 0) | product.isnan() if keeps_nan else product > 0
        return torch.where(keeps, product, 0.0).to(x.dtype)

    return kernel


def _tail_zeroed(out: Tensor) -> Tensor:
    out = out.clone()
    out[..., out.shape[-1] - max(out.shape[-1] // 16, 1) :] = 0
    return out


_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "tail zeroed": _tail_zeroed,
    "5 % too large": lambda out: (out.float() * 1.05).to(out.dtype),
    "index off by one": lambda out: out.roll(1, -1),
}


def _faulty(kernel: Kernel, fault: Callable[[Tensor], Tensor]) -> Kernel:
    """With a fault in its last output."""

    def mutant(*inputs: Tensor) -> tuple[Tensor, ...]:
        out = kernel(*inputs)
        *others, last = out if isinstance(out, tuple) else (out,)
        return (*others, fault(last))

    return mutant  # type: ignore[return-value]


def _any(make: Callable[[Sum], Kernel]) -> dict[str, Kernel]:
    return {name: _faulty(make(ORDERS["32 lanes"]), fault) for name, fault in _FAULTS.items()}


def _sums(make: Callable[[Sum], Kernel]) -> dict[str, Kernel]:
    return {**_any(make), "sums in bfloat16": make(in_bfloat16)}


def _drawn(words: str) -> Callable[[tuple[int, int], str], str]:
    """Inputs from one letter each: a matrix, a row, a target for each row."""

    def inputs(shape: tuple[int, int], dtype: str) -> str:
        rows, width = shape
        texts = {
            "m": f"torch.randn({rows}, {width}, dtype=torch.{dtype})",
            "r": f"torch.randn({width}, dtype=torch.{dtype})",
            "t": f"torch.randint({width}, ({rows},))",
        }
        return ", ".join(texts[letter] for letter in words)

    return inputs


_LANES = ORDERS["32 lanes"]
_TURNED = "torch.cat((-a[..., a.shape[-1] // 2 :], a[..., : a.shape[-1] // 2]), -1)"
ALL_KINDS: dict[str, Kind] = {
    **KINDS,
    "LLaMA's norm": Kind(
        "(a.float() * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(a) * b",
        _drawn("mr"),
        _llama_norm,
        {**_any(_llama_norm), ROUNDED_AGAIN: _llama_norm(in_bfloat16), "wrong eps": _llama_norm(_LANES, eps=1e-3)},
    ),
    "residual and norm": Kind(
        "(a + b, F.rms_norm(a.float() + b.float(), (a.shape[-1],), c.float(), 1e-5).to(a.dtype))",
        _drawn("mmr"),
        _residual_norm,
        _sums(_residual_norm),
    ),
    "variance": Kind(
        "a.float().var(-1, correction=0).to(a.dtype)",
        _drawn("m"),
        _variance,
        {**_sums(_variance), "mean not subtracted": _variance(_LANES, centred=False)},
    ),
    "cross-entropy": Kind(
        "F.cross_entropy(a, b, reduction='none')",
        _drawn("mt"),
        _cross_entropy,
        {**_sums(_cross_entropy), "maximum not subtracted": _cross_entropy(_LANES, shifted=False)},
    ),
    "rotary": Kind(f"a * b + {_TURNED} * c", _drawn("mmm"), _rotary, _any(_rotary)),
    "relu of a product": Kind(
        "F.relu(a * b)",
        _drawn("mm"),
        _relu,
        {**_any(_relu), "NaN taken for 0": _relu(_LANES, keeps_nan=False)},
    ),
}


# --- one kind at one shape --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One kernel, and what it gave on every case."""

    kind: str
    dtype: str
    shape: tuple[int, int]
    kernel: str
    honest: bool
    shows: bool  # else it is left out
    cases: list[Case]
    results: list[tuple[Tensor, ...]]

    def refused(self) -> str:
        """What stage it is refused in, and on which values; "" where it is accepted."""
        return next((name for name, _ in self.refusals()), "")

    def refusals(self) -> Iterator[tuple[str, str]]:
        """Every case that it is refused on, and why."""
        for case, outputs in zip(self.cases, self.results, strict=True):
            for spec, output, expected in zip(case.task.outputs, outputs, case.expected, strict=True):
                compared = compare(spec.name, output, expected)
                if compared.reason is not None:
                    yield case.name, compared.explanation
                    break


def runs(
    kind: str, dtype: str, shape: tuple[int, int], device: str = "cpu", key: str = "", sizes: int = 2
) -> list[Run]:
    """Every honest kernel and every mutant, on fresh inputs.

    `key`: what seeds are made from; secret ones where it is empty. `sizes`: other sizes that are tried, at most.
    """
    chosen = ALL_KINDS[kind]
    orders = {"one after the other": functools.partial(sum_in_lanes, lanes=1), **ORDERS}
    with one_thread(), torch.no_grad():
        cases = _cases(chosen, dtype, shape, device, key, sizes)

        def run(name: str, kernel: Kernel, honest: bool) -> Run:
            return Run(kind, dtype, shape, name, honest, True, cases, [_call(kernel, case) for case in cases])

        honest = [run(name, chosen.make(order), True) for name, order in orders.items()]
        mutants = [run(name, kernel, False) for name, kernel in chosen.mutants.items()]
    right = next(one for one in honest if one.kernel == "32 lanes").results
    judged = [dataclasses.replace(one, shows=not _same(one.results, right) and _shows(one)) for one in mutants]
    return [*honest, *judged]


def _cases(chosen: Kind, dtype: str, shape: tuple[int, int], device: str, key: str, sizes: int) -> list[Case]:
    inputs = chosen.inputs(shape, dtype)
    text = _FILE.format(names=", ".join("abc"[: inputs.count("torch.rand")]), body=chosen.body, inputs=inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference.py"
        path.write_text(text, encoding="utf-8")
        loaded = from_file(path, device=device)
    secret = hashlib.sha256(f"{key} {chosen.body} {dtype} {shape}".encode()).digest()
    cases = Cases(loaded, Seeds(secret) if key else Seeds.fresh())
    bounds = serves("", cases.task)
    assert isinstance(bounds, dict)
    others = [one for one in sweep(cases.task, bounds, cases.seed("sizes")) if 0 not in one.values()]
    first = cases.make("smoke")
    return [
        first,
        cases.make("smoke"),
        *(cases.make("shapes", sizes=one) for one in others[max(len(others) - sizes, 0) :]),
        *(cases.make(f"stability: {variant}", variant) for variant in STABILITY),
        dataclasses.replace(cases.changed(first), name="determinism"),
    ]


def _call(kernel: Kernel, case: Case) -> tuple[Tensor, ...]:
    out = kernel(*case.inputs)
    return out if isinstance(out, tuple) else (out,)


def _shows(run: Run) -> bool:
    """Whether it is further from the exact values than twice eager's distance, in any row of any case."""
    for case, outputs in zip(run.cases, run.results, strict=True):
        for output, expected in zip(outputs, case.expected, strict=True):
            if not torch.equal(output.isfinite(), expected.eager.isfinite()):
                return True
            mine, eager = (_worst_row(value, expected.reference) for value in (output, expected.eager))
            if mine > EAGERS * eager + torch.finfo(output.dtype).smallest_normal:
                return True
    return False


def _worst_row(value: Tensor, reference: Tensor) -> float:
    """The largest RMS error of a row, over finite elements."""
    error = value.double() - reference
    error = torch.where(error.isfinite(), error, 0.0)
    return float((error.square().mean(-1).sqrt()).max())


def _same(results: list[tuple[Tensor, ...]], right: list[tuple[Tensor, ...]]) -> bool:
    return all(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        for ours, theirs in zip(results, right, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


# --- the table --------------------------------------------------------------------------------------------------------


def measure(kind: str, dtype: str, device: str, repeats: int) -> Figures:
    tried: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    places: dict[str, Counter[str]] = {}
    odd: list[str] = []
    for shape in SHAPES * repeats:
        for run in runs(kind, dtype, shape, device):
            name = "honest" if run.honest else run.kernel
            if not run.shows:
                left_out[name] += 1
                continue
            found = list(run.refusals())
            tried[name] += 1
            refused[name] += bool(found)
            places.setdefault(name, Counter()).update({case for case, _ in found})
            if bool(found) is run.honest:
                odd.append(f"{run.kernel} {shape}: {found[0] if found else 'accepted'}")
    honest = tried["honest"]
    mutants, caught = (sum(of[name] for name in of if _held(name)) for of in (tried, refused))
    return {
        "tried": dict(tried),
        "refused": dict(refused),
        "left_out": dict(left_out),
        "places": {name: dict(counts.most_common()) for name, counts in places.items()},
        "odd": odd,
        "passed": refused["honest"] <= MOST_HONEST * honest and caught >= LEAST_MUTANTS * mutants,
    }


def table(results: dict[str, Figures]) -> str:
    by_kind: dict[str, dict[str, Figures]] = {}
    for row, figures in results.items():
        kind, dtype = row.rsplit(" ", 1)
        by_kind.setdefault(kind, {})[dtype] = figures
    by_kind["all"] = {}
    lines = []
    for kind, of in by_kind.items():
        groups = [[figures for row, figures in results.items() if row.endswith(f" {dtype}")] for dtype in DTYPES]
        if kind != "all":
            groups = [[of[dtype]] if dtype in of else [] for dtype in DTYPES]
        lines.append([kind, *(_share(group, honest) for group in groups for honest in (True, False))])
    header = ["kind", *(f"{dtype} {what}" for dtype in DTYPES for what in ("honest", "mutants"))]
    odd = [f"{row}: {words}" for row, figures in results.items() for words in figures["odd"]]
    return "\n".join(["refused:", text_table(header, lines), "", _by_mutant(results), "", *odd])


def _share(rows: Sequence[Figures], honest: bool) -> str:
    tried, refused = (
        sum(count for row in rows for name, count in row[what].items() if (name == "honest" if honest else _held(name)))
        for what in ("tried", "refused")
    )
    return f"{100 * refused / tried:.1f} % of {tried}" if tried else "-"


def _held(name: str) -> bool:
    """Whether a mutant is held to the limit."""
    return name not in ("honest", ROUNDED_AGAIN)


def _by_mutant(results: dict[str, Figures]) -> str:
    lines = []
    for name in dict.fromkeys(name for row in results.values() for name in row["tried"] if name != "honest"):
        tried, refused = (sum(row[what].get(name, 0) for row in results.values()) for what in ("tried", "refused"))
        places: Counter[str] = Counter()
        for row in results.values():
            places.update(row["places"].get(name, {}))
        words = ", ".join(f"{place} {count}" for place, count in places.most_common(4))
        none = sum(row["left_out"].get(name, 0) for row in results.values())
        lines.append([name, f"{100 * refused / tried:.1f} % of {tried}", f"{none}", words])
    return text_table(["mutant", "refused", "left out", "most often in"], lines)


def _rows(options: argparse.Namespace) -> list[Row]:
    return [
        Row(f"{name} {dtype}", functools.partial(measure, name, dtype, options.device, options.repeats), EXERCISES)
        for name, kind in ALL_KINDS.items()
        for dtype in kind.only
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=2, help="times that every shape is tried")


if __name__ == "__main__":
    sys.exit(main(Benchmark("judge_mutants", Path(__file__), _rows, table, _options, strict=True)))
