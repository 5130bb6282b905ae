"""What Python users and the command line call: the stages joined into whole jobs.

optimize(model, args, kwargs) -> Run        everything, for objects of this process
Run.load(path).apply(model)                 what a run kept, put into a model
backend(run)                                the same as a torch.compile backend

optimize_target, profile_target, extract_target, resume, verify_run      one for each command
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autokernel import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from autokernel.api.run import Run as Run
    from autokernel.records import Profile


@dataclass(frozen=True)
class Options:
    """What a user asked for. `budget_seconds` is for the search; baselines and verification come on top."""

    device: str = "auto"  # "auto": the GPU if there is one; for objects, where they are
    dtype: str | None = None
    batch: int | None = None
    seq: int | None = None  # from here to trust_remote_code: for models of libraries, see `workload.load`
    image: int | None = None
    workload: Literal["prefill", "decode"] = "prefill"
    random_weights: bool = False
    trust_remote_code: bool = False
    mode: str = "inference"
    out: Path | None = None
    budget_seconds: float = 1800.0
    experiments: int | None = None
    proposer: str = "search"
    isolation: Literal["auto", "bubblewrap", "plain"] = "auto"
    threads: int | None = None
    require_gain: bool = False

    def settled(self) -> Options:
        """With the user's settings where nothing was asked for, and the device chosen. Raises BadSetting."""
        own = settings.load()
        isolation = own.isolation if self.isolation == "auto" else self.isolation
        return dataclasses.replace(
            self, isolation=isolation, threads=self.threads or own.threads, device=chosen_device(self.device)
        )

    def flags(self) -> tuple[str, ...]:
        """What was asked of the model, as a command line has it: ("--batch", "8"). Without the device."""
        asked = {"dtype": self.dtype, "batch": self.batch, "seq": self.seq, "image": self.image}
        if self.workload != "prefill":
            asked["workload"] = self.workload
        found = [text for name, value in asked.items() if value is not None for text in (f"--{name}", str(value))]
        found += ["--random-weights"] * self.random_weights + ["--trust-remote-code"] * self.trust_remote_code
        return (*found, "--threads", str(self.threads)) if self.threads else tuple(found)


def chosen_device(name: str) -> str:
    """ "auto" → "cuda:0" where there is a GPU, else "cpu"; "cuda" → "cuda:0"; others as they are."""
    if name != "auto":
        return "cuda:0" if name == "cuda" else name
    from autokernel.workload.target import best_device

    return best_device()


def optimize(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    options: Options | None = None,
    say: Callable[[str], None] = print,
) -> Run:
    """Profile `model(*args, **kwargs)`, search kernels for it, prove the result. Returns the finished run.

    The model is put into eval mode and left otherwise unchanged; `run.apply(model)` gives the faster one.
    Raises AutokernelError's subclasses for everything a user can mend.
    """
    from autokernel.api.job import optimize_workload
    from autokernel.workload import from_objects
    from autokernel.workload.target import device_of

    workload = from_objects(model, args, kwargs)
    options = dataclasses.replace(options or Options(), device=device_of(workload.model, workload.cases))
    return optimize_workload(workload, options, say)


def optimize_target(target: str, options: Options, say: Callable[[str], None]) -> Run:
    """`autokernel optimize TARGET`."""
    from autokernel.api.job import load_workload, optimize_workload

    options = options.settled()
    return optimize_workload(load_workload(target, options), options, say)


def profile_target(target: str, options: Options, say: Callable[[str], None], *, trace: Path | None = None) -> Profile:
    """`autokernel profile TARGET`; `trace` names a file for a Chrome trace of a few calls. Raises OSError."""
    from autokernel.api.job import load_workload
    from autokernel.api.prepare import prepare

    flags = options.flags()
    options = options.settled()
    prepared = prepare(load_workload(target, options), options.threads, say, options.device)
    if trace is not None:
        from autokernel.profile.chrome import write_trace

        write_trace(trace, prepared.workload, prepared.captures[0])
        say(f"{trace} written: open it in https://ui.perfetto.dev or chrome://tracing")
    return prepared.profile.model_copy(update={"flags": flags})


def extract_target(target: str, options: Options, say: Callable[[str], None]) -> tuple[Path, ...]:
    """`autokernel extract TARGET`: the task folders it made, in order of recoverable time. Raises RunExists."""
    from autokernel.api.job import extract_workload, load_workload

    options = options.settled()
    return extract_workload(load_workload(target, options), options, say)


def resume(
    path: Path,
    say: Callable[[str], None],
    *,
    budget_seconds: float | None = None,
    experiments: int | None = None,
) -> Run:
    """`autokernel resume RUN`: more experiments, then the proof again. Raises NotARun, RunLocked, RunMismatch."""
    from autokernel.loop import manifest

    manifest.read(path)  # a path that is no run is told before torch is imported
    from autokernel.api.job import resume_run

    return resume_run(path, say, budget_seconds=budget_seconds, experiments=experiments)


def verify_run(path: Path, say: Callable[[str], None]) -> Run:
    """`autokernel verify RUN`: the proof again, for what the run holds now."""
    from autokernel.loop import manifest

    manifest.read(path)  # as in `resume`
    from autokernel.api.job import verify_again

    return verify_again(path, say)


def backend(run: Run | str | Path) -> Callable[..., Any]:
    """A torch.compile backend: `torch.compile(model, backend=autokernel.backend(run))`."""
    from autokernel.api.run import Run

    return (run if isinstance(run, Run) else Run.load(run)).backend()


def __getattr__(name: str) -> Any:
    if name == "Run":
        from autokernel.api.run import Run

        return Run
    raise AttributeError(f"module 'autokernel.api' has no attribute '{name}'")
