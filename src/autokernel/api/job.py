"""The stages joined: prepare ▸ run folder ▸ loop ▸ verify ▸ reports; and the same from a run that exists."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

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
from autokernel.report import profile_table, use_text
from autokernel.viewing import PROOF, draw, view_folder
from autokernel.workload import Workload, load

Say = Callable[[str], None]

VERIFY_SECONDS = {"cpu": 85.0, "cuda": 170.0}  # on a GPU compiling the baselines, two minutes and more, comes on top


def load_workload(target: str, options: Options) -> Workload:
    """Raises TargetNotFound, TargetInvalid, TargetFailed, UnsupportedTarget, UnsupportedMode, DeviceUnavailable."""
    options = options.settled()
    check(options)
    return _load(target, options)


def _load(target: str, wanted: Options | RunConfig) -> Workload:
    return load(
        target,
        device=wanted.device,
        dtype=wanted.dtype,
        batch=wanted.batch,
        seq=wanted.seq,
        image=wanted.image,
        workload=wanted.workload,
        random_weights=wanted.random_weights,
        trust_remote_code=wanted.trust_remote_code,
    )


def check(options: Options) -> None:
    """What this version can't do is said before any work is done."""
    if options.mode != "inference":
        raise UnsupportedMode(what=f"--mode {options.mode}", instead="Use --mode inference.")
    kind, _, number = options.device.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(device=options.device, detail="torch finds no CUDA device here.")
    if kind not in ("cpu", "cuda"):
        raise DeviceUnavailable(device=options.device, detail="this version optimises for cpu and cuda.")
    if options.device not in ("cpu", "cuda") and not number.isdecimal():
        raise DeviceUnavailable(device=options.device, detail="that is no device: what follows the colon is a number.")
    if kind == "cuda":
        torch.cuda.set_device(int(number or 0))
    if options.budget_seconds <= 0:
        raise BadSetting(name="budget", value=options.budget_seconds, detail="not positive", instead="Use e.g. 3m.")


def author(name: str) -> Any:
    """The proposer called `name`, ready. Raises UnknownName, MissingExtra, BadSetting; TargetNotFound (replay)."""
    kind, _, folder = name.partition(":")
    wrong = {"name": "proposer", "value": name}
    if kind == "replay" and not folder:
        raise BadSetting(**wrong, detail="it needs a folder of kernel files", instead="Write replay:FOLDER.")
    made_of = (folder,) if kind == "replay" else ()
    found = registry.resolve("proposer", kind if kind == "replay" else name)
    missing = [method for method in ("propose", "observe", "outlook") if not callable(getattr(found, method, None))]
    if missing:
        detail = f"{found.__name__} has no {missing[0]}()"
        raise BadSetting(**wrong, detail=detail, instead="Name a class that is a `Proposer` (autokernel.propose).")
    try:
        made = found(*made_of)
    except TypeError as error:
        raise BadSetting(**wrong, detail=str(error), instead="The class must be made without arguments.") from error
    if not isinstance(getattr(made, "name", None), str):
        raise BadSetting(**wrong, detail=f"{found.__name__} has no name", instead='Give it a `name = "..."`.')
    return made


def check_judging(proposer: str, isolation: Literal["auto", "bubblewrap", "plain"], device: str = "cpu") -> None:
    """What a run needs later is looked for first. Raises NoCompiler, CompilerFailed, SandboxUnavailable, and what a
    missing Triton is called."""
    from autokernel.judge.sandbox import Sandbox
    from autokernel.languages import get_language
    from autokernel.languages.cpp import compiler

    if device_class(device) == "cuda":
        from autokernel.judge import inductor
        from autokernel.languages.triton.language import Triton

        language = get_language("triton")
        assert isinstance(language, Triton)
        language.start()
        inductor.start()
    elif proposer == "search":
        compiler.version(compiler.find())
    Sandbox(isolation=isolation, threads=1, device=device)


def device_class(device: str) -> Literal["cpu", "cuda"]:
    return "cpu" if device.partition(":")[0] == "cpu" else "cuda"


# --- whole jobs -------------------------------------------------------------------------------------------------------


def optimize_workload(workload: Workload, options: Options, say: Say) -> Run:
    options = options.settled()
    check(options)
    proposer = author(options.proposer)
    path = (options.out or _default_out(workload.name)).absolute()
    _refuse_existing(path)
    check_judging(options.proposer, options.isolation, options.device)
    prepared = prepare(workload, options.threads, say, options.device)
    say(as_text(profile_table(prepared.profile)))
    seeds = Seeds.fresh()
    folder = RunFolder.create(
        path,
        _config(workload, options),
        prepared.write_tasks,
        versions=_versions(),
        machine=_machine(options.device),
        commitment=seeds.commitment,
        user_file=workload.path,
    )
    with folder:
        say(f"run folder: {path}")
        budget = Budget(options.budget_seconds, options.experiments)
        ended = _search(folder, proposer, seeds, budget, say)
        if ended:
            prove(folder, workload, say)
        finish(folder, say)
    return Run(path, interrupted=not ended)


def resume_run(path: Path, say: Say, *, budget_seconds: float | None, experiments: int | None) -> Run:
    with RunFolder.open(path, writable=True) as folder:
        for sentence in folder.journal.recovery.sentences():
            say(sentence)
        config = folder.config
        proposer = author(config.proposer)
        check_judging(config.proposer, config.isolation, config.device)
        _use_threads(folder)
        workload = _same_model(folder, say)
        seeds = Seeds.fresh()
        folder.add_session(seeds.commitment)
        left = max(config.budget_seconds - folder.spent_seconds(), 0.0) if budget_seconds is None else budget_seconds
        if experiments is None and config.experiments is not None:
            experiments = max(config.experiments - len(folder.trials), 0)
        go_on = _search(folder, proposer, seeds, Budget(left, experiments), say)
        if go_on and workload is not None:
            prove(folder, workload, say)
        elif go_on:
            say("not proved: the run was made from Python objects, which only the program that has them can verify")
        finish(folder, say)
    return Run(path, interrupted=not go_on)


def verify_again(path: Path, say: Say) -> Run:
    with RunFolder.open(path, writable=True) as folder:
        _use_threads(folder)
        workload = _same_model(folder, say)
        if workload is None:
            raise UnsupportedMode(
                what="`autokernel verify` on a run that was made from Python objects",
                instead="Run `autokernel.optimize` again in the program that has the model.",
            )
        prove(folder, workload, say)
        finish(folder, say)
    return Run(path)


def extract_workload(workload: Workload, options: Options, say: Say) -> tuple[Path, ...]:
    options = options.settled()
    path = (options.out or Path("tasks") / workload.name).absolute()
    _refuse_existing(path)
    prepared = prepare(workload, options.threads, say, options.device)
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


def prove(folder: RunFolder, workload: Workload, say: Say, seconds: float | None = None) -> Proof:
    """Verify the run's winners in the model; write proof.json and winners.json."""
    from autokernel.verify.verify import keeps_attention, kept, mode_of, verify

    winners = [
        Winner(task, folder.kernel_file(task.id).read_text(encoding="utf-8"), _speedup(folder, task.id))
        for task in folder.tasks()
        if task.id in folder.winners()
    ]
    say(f"verifying {len(winners)} kernel(s) inside the model")
    kind = device_class(folder.config.device)
    budget = VERIFY_SECONDS[kind] if seconds is None else seconds
    proof = verify(workload, winners, budget_seconds=budget, say=say)
    save_winners(folder.path, kept(proof, winners), mode_of(proof), kind, attention=keeps_attention(proof))
    folder.write(PROOF, proof.dump())
    return proof


def finish(folder: RunFolder, say: Say) -> None:
    """The files a user keeps: use.py and progress.png, from what the run holds now."""
    folder.write("use.py", use_text(folder.path, folder.config))
    say(draw(view_folder(folder)))


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
    workload = _load(config.target, config)
    folder.check_model(region_keys(workload))
    return workload


def _use_threads(folder: RunFolder) -> None:
    """As many as the run was profiled with."""
    torch.set_num_threads(folder.config.threads or folder.profile().threads)


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
    above = next(parent for parent in path.parents if os.path.exists(parent))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        problem = "can't be written to" if above.is_dir() else "is not a folder"
        raise BadSetting(name="out", value=path, detail=f"{above} {problem}", instead="Choose another folder: --out.")


def _target(workload: Workload) -> str:
    """What was typed, with an absolute path: a run is resumed from any folder."""
    if workload.path is None:
        return workload.target
    path = workload.path.resolve()
    whole = Path(workload.target).expanduser().resolve() == path
    return str(path) if whole else f"{path}:{workload.target.rpartition(':')[2]}"


def _proposer(name: str) -> str:
    kind, _, folder = name.partition(":")
    return f"replay:{Path(folder).absolute()}" if kind == "replay" else name


def _default_out(name: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{name}-{stamp}"


def _config(workload: Workload, options: Options) -> RunConfig:
    return RunConfig(
        target=_target(workload),
        name=workload.name,
        device=options.device,
        dtype=options.dtype,
        batch=options.batch,
        seq=options.seq,
        image=options.image,
        workload=options.workload,
        random_weights=options.random_weights,
        trust_remote_code=options.trust_remote_code,
        proposer=_proposer(options.proposer),
        budget_seconds=options.budget_seconds,
        experiments=options.experiments,
        isolation=options.isolation,
        threads=options.threads,
        require_gain=options.require_gain,
    )


def _machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "threads": torch.get_num_threads(), "processor": platform.machine()}
    if device_class(device) == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return found


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("autokernel-torch", "torch", "triton", "numpy", "pygit2"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
            found[name] = "not installed"
    return found


def as_text(renderable: object) -> str:
    """A table as plain text, as wide as the terminal (120 columns where there is none)."""
    stream = io.StringIO()
    width = shutil.get_terminal_size((120, 24)).columns
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue().rstrip()
