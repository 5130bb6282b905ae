"""A run whose tasks exist on paper only: real folder, real git, real journal; no torch and nothing to execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from autokernel.loop.folder import RunFolder
from autokernel.records import Ceilings, Profile, RegionRow, RunConfig, Task, TensorSpec
from autokernel.task import LoadedTask


def paper_task(number: int, slug: str, *, occurrences: int = 1) -> Task:
    spec = TensorSpec(name="x", dtype="float32", shape=(256, 512), stride=(512, 1))
    return Task(
        id=f"{number:02d}-{slug}",
        title=slug.replace("-", " "),
        fingerprint=f"fingerprint of {slug}",
        shape_key="256,512",
        occurrences=occurrences,
        inputs=(spec,),
        outputs=(spec.model_copy(update={"name": "out"}),),
        flops=1_000_000,
        min_bytes=1_048_576,
        kind="row",
    )


def paper_profile(shares: Mapping[str, float], tasks: Mapping[str, Task]) -> Profile:
    """`shares`: task id → fraction of a model of 10 ms; half of each task's time is recoverable."""
    rows = tuple(
        RegionRow(
            task=name,
            fingerprint=tasks[name].fingerprint,
            shape_key=tasks[name].shape_key,
            title=tasks[name].title,
            kind="row",
            occurrences=tasks[name].occurrences,
            time_us=share * 10_000,
            share=share,
            floor_us=share * 5_000,
            recoverable_us=share * 5_000,
            flops=tasks[name].flops,
            min_bytes=tasks[name].min_bytes,
            generator="row",
        )
        for name, share in shares.items()
    )
    ceilings = Ceilings(
        device="paper",
        threads=2,
        bandwidth=((1 << 16, 1e10), (1 << 26, 1e10)),
        matrix={"float32": 1e11},
        measured_at="2026-01-01T00:00:00+00:00",
    )
    return Profile(
        target="paper.py",
        device="paper",
        threads=2,
        total_us=10_000,
        uninstrumented_us=10_000,
        attributed=1.0,
        regions=rows,
        lines=(),
        ceilings=ceilings,
    )


def paper_run(path: Path, shares: Mapping[str, float], **config: Any) -> RunFolder:
    """A new run at `path`, open for writing. `shares`: slug → share; tasks are numbered in that order."""
    tasks = {task.id: task for number, slug in enumerate(shares, 1) for task in [paper_task(number, slug)]}
    profile = paper_profile(dict(zip(tasks, shares.values(), strict=True)), tasks)
    settings = RunConfig(target="paper.py", name="paper", proposer="scripted", **config)
    return RunFolder.create(path, settings, writer(tasks, profile), versions={"autokernel": "test"})


def writer(tasks: Mapping[str, Task], profile: Profile) -> Callable[[Path], Profile]:
    def fill(directory: Path) -> Profile:
        for name, task in tasks.items():
            (directory / name).mkdir()
            (directory / name / "task.json").write_text(task.dump(), encoding="utf-8")
            (directory / name / "reference.py").write_text("# on paper\n", encoding="utf-8")
        return profile

    return fill


def loaded(folder: RunFolder) -> dict[str, LoadedTask]:
    """The run's tasks as the loop takes them; calling a reference is an error."""

    def reference(*inputs: object) -> tuple[object, ...]:
        raise NotImplementedError("a paper task has no reference")

    module = cast(Any, None)  # the loop hands it on and never looks at it
    return {
        task.id: LoadedTask(task=task, reference=reference, module=module, path=folder.task_folder(task.id))
        for task in folder.tasks()
    }
