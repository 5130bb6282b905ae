"""Other people's models, whole: `autokernel optimize` on each, against every baseline. Random weights, no download.

    python benchmarks/models.py --merge benchmarks/results/models-h200.json --out benchmarks/results/models-h200.json

A row is one model at one workload: `eager_ms`, `compile_ms`, `max_autotune_ms`, `cuda_graphs_ms` (the fastest baseline
with CUDA graphs), `best_baseline_ms`, `ours_ms` (what is recommended: the best baseline where there was no gain),
`ratio` of the best baseline to ours with its bounds, `coverage`, `max_error_ratio` (largest error over what is allowed,
1 would be a failure). Coverage is the share of the model's time in regions that a generator covers, or in attention
that a rewrite looked at. The most important rows come first; rows that were not run are listed as not run.

`--small` takes models of the same kinds with a few layers, for a CPU.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness import Benchmark, Figures, Row, main, text_table
from llama import last, read, stream

ZOO = Path(__file__).parent / "zoo"
SLOWER = 1.01  # most that ours may take of the best baseline's time, as upper bound


@dataclass(frozen=True)
class Model:
    """`target` and what follows it on the command line; `small` the same for a CPU (None: not there)."""

    name: str
    target: str
    words: tuple[str, ...] = ()
    small: str | None = None
    small_words: tuple[str, ...] = ()


def _llama(sizes: str) -> str:
    return f"hf:LlamaConfig({sizes}, num_key_value_heads=8)"


_LLAMA = "hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, vocab_size=128256"
_LLAMA_SMALL = "hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=8, vocab_size=1000"
_VIT = "hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16"
_VIT_SMALL = "hidden_size=192, intermediate_size=768, num_hidden_layers=2, num_attention_heads=3"
_QWEN = "hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2"
_MIXTRAL = "hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_local_experts=4"
_CONVNEXT = "depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024]"
_DECODE = ("--workload", "decode")
MODELS = (
    Model("llama-1b prefill", _llama(_LLAMA), ("--seq", "2048"), _llama(_LLAMA_SMALL), ("--seq", "128")),
    Model(
        "gpt2 prefill", "hf:GPT2LMHeadModel", ("--seq", "1024"),
        "hf:GPT2LMHeadModel(n_layer=2, n_embd=192, n_head=3, vocab_size=1000)", ("--seq", "128"),
    ),
    Model(
        "bert-base", "hf:BertConfig", ("--batch", "8", "--seq", "512"),
        "hf:BertConfig(num_hidden_layers=2, hidden_size=192, num_attention_heads=3, intermediate_size=768)",
        ("--batch", "2", "--seq", "128"),
    ),
    Model("vit-l-16", f"hf:ViTConfig({_VIT})", ("--batch", "32"), f"hf:ViTConfig({_VIT_SMALL})", ("--batch", "1")),
    Model(
        "resnet-50", "hf:ResNetConfig", ("--batch", "32", "--image", "224"),
        "hf:ResNetConfig(depths=[1, 1, 1, 1], hidden_sizes=[64, 128, 256, 512])", ("--batch", "1", "--image", "96"),
    ),
    Model(
        "llama-1b decode", _llama(_LLAMA), ("--seq", "2048", *_DECODE),
        _llama(_LLAMA_SMALL), ("--seq", "64", *_DECODE),
    ),
    Model("t5-small", "hf:T5Config", ("--batch", "8", "--seq", "512")),
    Model("qwen2-0.5b prefill", f"hf:Qwen2Config({_QWEN})", ("--seq", "2048")),
    Model("qwen2-0.5b decode", f"hf:Qwen2Config({_QWEN})", ("--seq", "2048", *_DECODE)),
    Model("gpt2 decode", "hf:GPT2LMHeadModel", ("--seq", "1024", *_DECODE)),
    Model("whisper-small encoder", str(ZOO / "whisper_encoder.py")),
    Model("convnext-b", f"hf:ConvNextConfig({_CONVNEXT})", ("--batch", "32")),
    Model("dit block", str(ZOO / "dit_block.py")),
    Model("mixtral-tiny prefill", f"hf:MixtralConfig({_MIXTRAL}, num_key_value_heads=4)", ("--seq", "1024")),
    Model("mamba-130m", "hf:MambaConfig(hidden_size=768, num_hidden_layers=24)", ("--seq", "1024")),
)  # fmt: skip


def measure(model: Model, options: argparse.Namespace) -> Figures:
    target, words = (model.small, model.small_words) if options.small else (model.target, model.words)
    assert target is not None
    if target.startswith("hf:"):
        words = (*words, "--random-weights")
    dtype = options.dtype or ("float32" if options.small else "bfloat16")
    out = Path(tempfile.mkdtemp(prefix="autokernel-model-")) / "run"
    command = ["optimize", target, *words, "--device", options.device, "--dtype", dtype]
    command += ["--budget", options.budget, "--out", str(out)]
    status, seconds, lines = stream(command, options.timeout)
    if status not in (0, 1) or not (out / "proof.json").exists():
        raise RuntimeError(f"it ended with status {status}:\n" + "\n".join(last(lines)))
    found = read(out)
    figures = {"model": model.name, "command": "autokernel " + " ".join(command), "wall_seconds": seconds}
    figures |= summary(found["proof"]) | {"coverage": coverage(out, found["proof"])}
    figures |= {"experiments": found["experiments"], "winners": found["winners"], "left_alone": _left_alone(out)}
    return figures | {"tasks": found["tasks"], "report": found["report"], "passed": passed(figures)}


def summary(proof: Figures) -> Figures:
    """The row's times from a proof, all in milliseconds a call; None where a baseline was not measured."""
    times = {row["name"]: row["ms"] for row in proof["baselines"]}
    graphs = [ms for name, ms in times.items() if "CUDA graphs" in name]
    best = next(row for row in proof["baselines"] if row["name"] == proof["best_baseline"])
    gain = proof["result"] == "gain"
    return {
        "result": proof["result"],
        "eager_ms": times.get("eager"),
        "compile_ms": times.get("torch.compile"),
        "max_autotune_ms": times.get("max-autotune"),
        "cuda_graphs_ms": min(graphs, default=None),
        "best_baseline": best["name"],
        "best_baseline_ms": best["ms"],
        "ours_ms": proof["ours_ms"] if gain else best["ms"],
        "ratio": [best["ratio"], best["ci_low"], best["ci_high"]] if gain else [1.0, 1.0, 1.0],
        "pairs": best["pairs"],
        "max_error_ratio": max((row["worst"] for row in proof["outputs"]), default=None),
        "in_the_model": [[row["task"], row["in_model"], row["kept"]] for row in proof["winners"]],
        "attention": proof["attention"],
        "notes": proof["notes"],
    }


def coverage(out: Path, proof: Figures) -> float:
    """Share of the model's time in regions that a generator covers, and in attention that a rewrite looked at."""
    profile = _profile(out)
    looked_at = proof["attention"] is not None
    return float(
        sum(row.share for row in profile.regions if row.generator or (looked_at and "attention" in row.title.lower()))
    )


def _left_alone(out: Path) -> list[str]:
    profile = _profile(out)
    rows = [f"{row.title}: {row.share:.1%}, {row.reason}" for row in profile.regions if not row.generator]
    return [*rows[:12], *profile.skipped]


def _profile(out: Path) -> Any:
    from autokernel.records import Profile

    return Profile.load(out / "profile.json")


def passed(row: Figures) -> bool:
    """Right, and not slower than the best baseline beyond `SLOWER`."""
    right = row["max_error_ratio"] is None or row["max_error_ratio"] <= 1
    return bool(row["result"] != "failed" and right and 1 / row["ratio"][1] <= SLOWER)


def table(results: dict[str, Figures]) -> str:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    lines = [
        [
            name, ms(row["eager_ms"]), ms(row["compile_ms"]), ms(row["max_autotune_ms"]), ms(row["cuda_graphs_ms"]),
            f"{ms(row['best_baseline_ms'])} {row['best_baseline']}", ms(row["ours_ms"]),
            "{:.3f} [{:.3f}, {:.3f}]".format(*row["ratio"]), f"{row['coverage']:.0%}",
            ms(row["max_error_ratio"]), row["result"],
        ]
        for name, row in results.items()
    ]  # fmt: skip
    header = ["model", "eager ms", "compile", "max-autotune", "graphs", "best", "ours", "×", "coverage", "error", ""]
    missing = [model.name for model in MODELS if model.name not in results]
    return text_table(header, lines) + (f"\nnot run: {', '.join(missing)}" if missing else "")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="default: bfloat16; float32 with --small")
    parser.add_argument("--budget", default="3m", help="of each model's search, as optimize takes it")
    parser.add_argument("--timeout", type=float, default=1e9, help="seconds after which a run is asked to stop")
    parser.add_argument("--small", action="store_true", help="models of a few layers, for a CPU")


def _rows(options: argparse.Namespace) -> Sequence[Row]:
    chosen = [model for model in MODELS if not options.small or model.small is not None]
    return [Row(model.name, functools.partial(measure, model, options)) for model in chosen]


if __name__ == "__main__":
    sys.exit(
        main(
            Benchmark(
                "models",
                Path(__file__),
                _rows,
                table,
                _options,
                beside=("llama.py", "zoo/dit_block.py", "zoo/whisper_encoder.py"),
            )
        )
    )
