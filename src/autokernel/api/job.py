"""The stages joined: prepare ▸ run folder ▸ loop ▸ verify ▸ reports; and the same from a run that exists."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from autokernel import registry
from autokernel.api import Options
from autokernel.api.prepare import Prepared, prepare, region_keys
from autokernel.api.run import Run
from autokernel.errors import BadSetting, DeviceUnavailable, RunExists, UnsupportedMode
from autokernel.install import Winner
from autokernel.install.saved import save_winners
from autokernel.judge.seeds import Seeds
from autokernel.loop import Budget
from autokernel.loop.folder import RunFolder
from autokernel.loop.judging import local_executor
from autokernel.loop.run import run_loop
from autokernel.records import Profile, Proof, RunConfig
from autokernel.report import profile_table, progress_png, use_text
from autokernel.viewing import PROGRESS, PROOF, view_folder
from autokernel.workload import Workload, load

Say = Callable[[str], None]

VERIFY_SECONDS = 100.0


def load_workload(target: str, options: Options) -> Workload:
    """Raises TargetNotFound, TargetInvalid, TargetFailed, UnsupportedTarget, UnsupportedMode, DeviceUnavailable."""
    check(options)
    return load(target, device=options.device, dtype=options.dtype, batch=options.batch)


def check(options: Options) -> None:
    """What this version can't do is said before any work is done."""
    if options.mode != "inference":
        raise UnsupportedMode(what=f"--mode {options.mode}", instead="Use --mode inference.")
    kind = options.device.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(device=options.device, detail="torch finds no CUDA device here.")
    if kind != "cpu":
        raise DeviceUnavailable(device=options.device, detail="this version optimises for the CPU only.")
    if options.budget_seconds <= 0:
        raise BadSetting(name="budget", value=options.budget_seconds, detail="not positive", instead="Use e.g. 3m.")


# --- whole jobs -------------------------------------------------------------------------------------------------------


def optimize_workload(workload: Workload, options: Options, say: Say) -> Run:
    check(options)
    proposer = registry.resolve("proposer", options.proposer)()
    path = (options.out or _default_out(workload.name)).absolute()
    _refuse_existing(path)
    prepared = prepare(workload, options.threads, say)
    say(as_text(profile_table(prepared.profile)))
    seeds = Seeds.fresh()
    folder = RunFolder.create(
        path,
        _config(workload, options),
        prepared.write_tasks,
        versions=_versions(),
        machine={"device": "cpu", "threads": torch.get_num_threads(), "processor": platform.machine()},
        commitment=seeds.commitment,
        user_file=workload.path,
    )
    with folder:
        say(f"run folder: {path}")
        budget = Budget(options.budget_seconds, options.experiments)
        if _search(folder, proposer, seeds, budget, say):
            prove(folder, workload, say)
        finish(folder)
    return Run(path)


def resume_run(path: Path, say: Say, *, budget_seconds: float | None, experiments: int | None) -> Run:
    with RunFolder.open(path, writable=True) as folder:
        for sentence in folder.journal.recovery.sentences():
            say(sentence)
        config = folder.config
        _use_threads(config)
        workload = _same_model(folder, say)
        seeds = Seeds.fresh()
        folder.add_session(seeds.commitment)
        left = max(config.budget_seconds - folder.spent_seconds(), 0.0) if budget_seconds is None else budget_seconds
        proposer = registry.resolve("proposer", config.proposer)()
        go_on = _search(folder, proposer, seeds, Budget(left, experiments), say)
        if workload is None:
            say("this run was made from Python objects: `Run.load(path)` in a program that has them can apply it")
        elif go_on:
            prove(folder, workload, say)
        finish(folder)
    return Run(path)


def verify_again(path: Path, say: Say) -> Run:
    with RunFolder.open(path, writable=True) as folder:
        _use_threads(folder.config)
        workload = _same_model(folder, say)
        if workload is None:
            raise UnsupportedMode(
                what="`autokernel verify` on a run that was made from Python objects",
                instead="Run `autokernel.optimize` again in the program that has the model.",
            )
        prove(folder, workload, say)
        finish(folder)
    return Run(path)


def extract_workload(workload: Workload, options: Options, say: Say) -> tuple[Path, ...]:
    path = (options.out or Path("tasks") / workload.name).absolute()
    _refuse_existing(path)
    prepared = prepare(workload, options.threads, say)
    return _write_whole(prepared, path)


# --- stages -----------------------------------------------------------------------------------------------------------


def _search(folder: RunFolder, proposer: object, seeds: Seeds, budget: Budget, say: Say) -> bool:
    """Run the loop on the tasks that an author may write. False when a signal ended it."""
    from autokernel.task.folder import load as load_task

    profile = folder.profile()
    wanted = {row.task for row in profile.regions if row.task and _worth_trying(row.generator, folder.config.proposer)}
    tasks = {name: load_task(folder.task_folder(name)) for name in folder.task_ids() if name in wanted}
    executor = local_executor(folder, seeds=seeds, say=say)
    try:
        result = run_loop(folder, tasks, profile, proposer, executor, budget=budget, say=say)  # type: ignore[arg-type]
    finally:
        executor.close()
    return result.interrupted is None


def _worth_trying(generator: str | None, proposer: str) -> bool:
    """The built-in author can write only what its generator covers; others may try anything."""
    return generator is not None or proposer != "search"


def prove(folder: RunFolder, workload: Workload, say: Say, seconds: float = VERIFY_SECONDS) -> Proof:
    """Verify the run's winners in the model; write proof.json and winners.json."""
    from autokernel.verify.verify import kept, mode_of, verify

    winners = [
        Winner(task, folder.kernel_file(task.id).read_text(encoding="utf-8"), _speedup(folder, task.id))
        for task in folder.tasks()
        if task.id in folder.winners()
    ]
    say(f"verifying {len(winners)} kernel(s) inside the model")
    proof = verify(workload, winners, budget_seconds=seconds, say=say)
    save_winners(folder.path, kept(proof, winners), mode_of(proof))
    folder.write(PROOF, proof.dump())
    return proof


def finish(folder: RunFolder) -> None:
    """The files a user keeps: use.py and progress.png, from what the run holds now."""
    folder.write("use.py", use_text(folder.path, folder.config))
    progress_png(view_folder(folder), folder.path / PROGRESS)


def _speedup(folder: RunFolder, task: str) -> float | None:
    verdict = folder.winners()[task][1]
    kind = verdict.first_incumbent
    return verdict.baselines[kind].speedup if kind is not None else None


# --- small things -----------------------------------------------------------------------------------------------------


def _same_model(folder: RunFolder, say: Say) -> Workload | None:
    """The run's own target, loaded again and found to be the same model; None for a run of Python objects."""
    config = folder.config
    if config.target == "python":
        return None
    workload = load(config.target, device=config.device, dtype=config.dtype, batch=config.batch)
    folder.check_model(region_keys(workload))
    return workload


def _use_threads(config: RunConfig) -> None:
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def _write_whole(prepared: Prepared, path: Path) -> tuple[Path, ...]:
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        profile: Profile = prepared.write_tasks(partial)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return tuple(path / row.task for row in profile.regions if row.task)


def _refuse_existing(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunExists(path=path)


def _default_out(name: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{name}-{stamp}"


def _config(workload: Workload, options: Options) -> RunConfig:
    return RunConfig(
        target=workload.target,
        name=workload.name,
        device=options.device,
        dtype=options.dtype,
        batch=options.batch,
        proposer=options.proposer,
        budget_seconds=options.budget_seconds,
        experiments=options.experiments,
        isolation=options.isolation,
        threads=options.threads,
        require_gain=options.require_gain,
    )


def _versions() -> dict[str, str]:
    names = ("autokernel-torch", "torch", "numpy", "pygit2")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def as_text(renderable: object) -> str:
    """A table as plain text, as wide as the terminal (120 columns where there is none)."""
    stream = io.StringIO()
    width = shutil.get_terminal_size((120, 24)).columns
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue().rstrip()
