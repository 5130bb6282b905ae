"""`autokernel submit`: the loop for a person or an open agent. Judge one kernel, commit it, keep or revert."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path

from autokernel.errors import KernelInvalid
from autokernel.execute import Executor
from autokernel.judge.seeds import Seeds
from autokernel.loop import noise
from autokernel.loop.experiment import Bench, experiment
from autokernel.loop.folder import RunFolder
from autokernel.loop.judging import local_executor
from autokernel.loop.signals import StopFlag, caught
from autokernel.loop.state import restore
from autokernel.records import Proposal, Trial, Verdict
from autokernel.task import LoadedTask

AUTHOR = "submit"


def submit(
    run: Path,
    task: str,
    kernel: Path,
    *,
    description: str = "",
    say: Callable[[str], None] = lambda line: None,
    executor: Executor | None = None,
    load: Callable[[Path], LoadedTask] | None = None,
) -> tuple[Trial, Verdict]:
    """Judge the kernel file for a task ("3", "03" or its folder's name) and record the experiment.

    `executor` and `load` (task folder → task) are the run's own where none are given. Raises KernelInvalid, NotARun,
    NoSuchTask, RunLocked; Stopped when a signal came.
    """
    source, language = _read(kernel)  # before the run is opened: that puts tasks/NN/kernel.py back to the incumbent
    started = time.monotonic()
    with RunFolder.open(run, writable=True) as folder, caught(StopFlag()) as stop:
        name = folder.task_id(task)
        for sentence in folder.journal.recovery.sentences():
            say(sentence)
        if load is None:
            from autokernel.task.folder import load as load_task

            load = load_task
        loaded = load(folder.task_folder(name))
        proposal = Proposal(source=source, language=language, author=AUTHOR, hypothesis=description)
        state = restore(folder, loaded, folder.profile())
        seeds, own = Seeds.fresh(), None
        if executor is None:
            executor = own = local_executor(folder, seeds=seeds, tasks={name: loaded}, say=say)
        try:
            bench = Bench(folder, executor, stop, noise.limits(folder), AUTHOR, say, commitment=seeds.commitment)
            with stop.interruptible():
                noise.begin(bench, state)
            return experiment(bench, state, proposal, started=started)
        finally:
            if own is not None:
                own.close()


def _read(path: Path) -> tuple[str, str]:
    """The text of a kernel file and its LANGUAGE. What the kernel does is the judge's to find out."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except OSError as error:
        raise KernelInvalid(path=path, detail=f"it can't be read ({error.strerror})") from error
    except (ValueError, SyntaxError) as error:
        raise KernelInvalid(path=path, detail=f"it is not Python: {error}") from error
    if not any(isinstance(node, ast.FunctionDef) and node.name == "launch" for node in tree.body):
        raise KernelInvalid(path=path, detail="it defines no function `launch`")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == "LANGUAGE":
                    return source, node.value.value
    raise KernelInvalid(path=path, detail='it has no line `LANGUAGE = "..."`')
