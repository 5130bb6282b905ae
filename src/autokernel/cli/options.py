"""The flags, each declared once."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Annotated

import typer

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Mode(enum.StrEnum):
    inference = "inference"
    training = "training"


class Workload(enum.StrEnum):
    prefill = "prefill"
    decode = "decode"


class Isolation(enum.StrEnum):
    auto = "auto"
    bubblewrap = "bubblewrap"
    plain = "plain"


def seconds(text: str | float) -> float:
    """`90`, `90s`, `3m`, `1.5h` as seconds. Raises typer.BadParameter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(text).strip())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a time; write 30s, 3m or 1h")
    return float(match[1]) * _UNITS[match[2]]


Target = Annotated[
    str, typer.Argument(help="A Python file, `file.py:name`, `hf:NAME` or `timm:NAME`.", show_default=False)
]
Run = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]
TaskName = Annotated[str, typer.Argument(help="A task's number or folder name.", metavar="TASK", show_default=False)]
Number = Annotated[int, typer.Argument(help="An experiment's number.", metavar="N", show_default=False)]
Reference = Annotated[
    Path, typer.Argument(help="A task folder, or a Python file in KernelBench form.", metavar="REF", show_default=False)
]

Kernel = Annotated[Path, typer.Option("--kernel", help="The kernel file to judge.", metavar="FILE", show_default=False)]
Description = Annotated[
    str, typer.Option("--description", help="What you tried, for the journal.", metavar="TEXT", show_default=False)
]
Device = Annotated[
    str, typer.Option("--device", help="Where the model runs: cpu, cuda, cuda:N; auto takes the GPU if there is one.")
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Convert floating-point weights and inputs.", metavar="float32|bfloat16|…"),
]
Batch = Annotated[int | None, typer.Option("--batch", help="Batch size of the example inputs.", min=1)]
Seq = Annotated[
    int | None,
    typer.Option("--seq", help="hf: tokens in the example or cache; 512.", min=1, show_default=False),
]
Image = Annotated[
    int | None, typer.Option("--image", help="hf, timm: edge of the image; the model's own.", min=1, show_default=False)
]
Phase = Annotated[
    Workload, typer.Option("--workload", help="hf: a pass over the whole sequence, or one step with a cache.")
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="hf, timm: draw weights; a class, hf:LlamaConfig, is enough.")
]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="hf: run code that the model brings with it.")]
ModeOption = Annotated[Mode, typer.Option("--mode", help="What the model is used for; inference only, so far.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The folder to make; without it runs/NAME-DATE.", metavar="DIR", show_default=False),
]
Budget = Annotated[
    float, typer.Option("--budget", help="Time for the search: 30s, 3m, 1h.", metavar="TIME", parser=seconds)
]
MoreBudget = Annotated[
    float | None,
    typer.Option(
        "--budget", help="More time for the search; without it what was left.", metavar="TIME", parser=seconds
    ),
]
Experiments = Annotated[int | None, typer.Option("--experiments", help="Stop after this many experiments.", min=0)]
Proposer = Annotated[
    str, typer.Option("--proposer", help="Who writes: a name, replay:FOLDER, or package.module:Class.")
]
IsolationOption = Annotated[Isolation, typer.Option("--isolation", help="How candidates are shut in while judged.")]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads a kernel may use.", min=1)]
SelfTest = Annotated[
    bool, typer.Option("--self-test", help="Try the judge on known cheats and honest kernels; some minutes.")
]
RequireGain = Annotated[bool, typer.Option("--require-gain", help="Exit with status 1 unless the result is a gain.")]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", help="Write the profile as one HTML page, with nothing beside it.", metavar="FILE", show_default=False
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="Write a Chrome trace of a few calls (JSON).", metavar="FILE", show_default=False),
]
Json = Annotated[
    bool, typer.Option("--json", help="The answer as JSON on standard output, progress on standard error.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Tracebacks of errors.")]
