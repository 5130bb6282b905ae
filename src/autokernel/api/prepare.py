"""From a workload to ranked regions: captured, profiled, and written as task folders."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from autokernel.api.masks import mask_rows
from autokernel.api.merge import merge
from autokernel.errors import CaptureFailed, NotComputable
from autokernel.generate import Coverage
from autokernel.graph import Capture, CapturedGraph, Region
from autokernel.records import Ceilings, Profile, RegionRow
from autokernel.workload import Case, Workload

if TYPE_CHECKING:
    from torch import fx

    from autokernel.task.folder import Observed

MAX_CASES = 8  # each is captured and profiled on its own
PROFILE_SECONDS = 6.0

Key = tuple[str, str]  # fingerprint, shape key


@dataclass(frozen=True)
class Prepared:
    """`groups` are the regions of equal fingerprint and shape, over all cases, in the profile's order."""

    workload: Workload
    captures: tuple[Capture, ...]
    profile: Profile
    groups: tuple[tuple[Region, ...], ...]

    def write_tasks(self, directory: Path) -> Profile:
        """Make a task folder for each group in `directory`; the profile again, its rows naming them."""
        from autokernel.task.folder import write

        graphs = [graph for capture in self.captures for graph in capture.graphs]
        statistics = _observe(graphs)
        ids: dict[Key, str] = {}
        refused: dict[Key, str] = {}
        for number, regions in enumerate(self.groups, start=1):
            try:
                ids[_key(regions[0])] = write(directory, number, regions, statistics).id
            except NotComputable as error:  # stays in the model and in the table, with the reason
                refused[_key(regions[0])] = str(error.values["detail"])
        return self.profile.model_copy(update={"regions": tuple(_named(self.profile.regions, ids, refused))})


def _named(rows: tuple[RegionRow, ...], ids: dict[Key, str], refused: dict[Key, str]) -> Iterator[RegionRow]:
    for row in rows:
        key = (row.fingerprint, row.shape_key)
        if key in refused:
            yield row.model_copy(update={"generator": None, "reason": f"no task: {refused[key]}"})
        else:
            yield row.model_copy(update={"task": ids.get(key)})


def prepare(workload: Workload, threads: int | None, say: Callable[[str], None], device: str = "cpu") -> Prepared:
    """Capture and profile. Raises CaptureFailed, TargetFailed, OutOfMemory."""
    from autokernel.profile.ceilings import measure_ceilings

    started = time.monotonic()
    if threads is not None:
        torch.set_num_threads(threads)
    say(f"{workload.name}: {describe_machine(device)}")
    for line in workload.assumptions:
        say(f"  assumed: {line}")
    captures = tuple(_capture(workload, case) for case in workload.cases[:MAX_CASES])
    if not any(graph.regions for capture in captures for graph in capture.graphs):
        reasons = "; ".join(skipped.reason for capture in captures for skipped in capture.skipped)
        raise CaptureFailed(target=workload.target, detail=reasons or "it has no operations on tensors")
    ceilings = measure_ceilings(device, torch.get_num_threads())
    profile = _profile(workload, captures, ceilings, "cpp" if device == "cpu" else "triton")
    groups = _groups(captures, profile)
    say(
        f"captured {sum(len(c.graphs) for c in captures)} graph(s), {len(groups)} distinct regions, "
        f"profiled in {time.monotonic() - started:.0f} s"
    )
    return Prepared(workload, captures, profile, groups)


def describe_machine(device: str = "cpu") -> str:
    """`cpu, 2 threads, torch 2.13.0, Python 3.11`; the GPU's name where it is one."""
    what = f"cpu, {torch.get_num_threads()} threads"
    if device != "cpu":
        what = f"{torch.cuda.get_device_name(torch.device(device))} ({device})"
    return f"{what}, torch {torch.__version__}, Python {platform.python_version()}"


def _capture(workload: Workload, case: Case) -> Capture:
    from autokernel.graph.capture import capture

    return capture(workload.model, case.args, case.kwargs)


def _profile(workload: Workload, captures: tuple[Capture, ...], ceilings: Ceilings, language: str) -> Profile:
    """One profile for all cases: each is profiled alone, times are averaged by the cases' weights."""
    from autokernel.profile.measure import profile

    seconds = max(2.0, PROFILE_SECONDS / len(captures))
    profiles = []
    for case, capture in zip(workload.cases, captures, strict=False):
        one = dataclasses.replace(workload, cases=(case,))
        found = profile(one, capture, ceilings, _coverage(language), seconds=seconds)
        profiles.append(found.model_copy(update={"masks": mask_rows(one, capture, found)}))
    return merge(profiles, [case.weight for case in workload.cases[: len(profiles)]])


def _coverage(language: str) -> Callable[[Region], Coverage]:
    """What the built-in generator says of a region; asked once for each fingerprint."""
    from autokernel.generate import coverage
    from autokernel.graph.lower import lower

    known: dict[Key, Coverage] = {}

    def ask(region: Region) -> Coverage:
        if region.kind == "other":
            return Coverage(None, f"no generator for {region.title}")
        if _key(region) not in known:
            values = [node.meta["val"] for node in region.inputs]
            known[_key(region)] = coverage(lower(region.module, values), language)
        return known[_key(region)]

    return ask


def _groups(captures: tuple[Capture, ...], profile: Profile) -> tuple[tuple[Region, ...], ...]:
    from autokernel.task.folder import group

    found: dict[Key, tuple[Region, ...]] = {}
    for capture in captures:
        for regions in group(capture):
            found.setdefault(_key(regions[0]), regions)
    rank = {(row.fingerprint, row.shape_key): number for number, row in enumerate(profile.regions)}
    return tuple(sorted(found.values(), key=lambda regions: rank.get(_key(regions[0]), len(rank))))


def _observe(graphs: list[CapturedGraph]) -> dict[fx.Node, Observed]:
    from autokernel.task.folder import observe

    found: dict[fx.Node, Observed] = {}
    for graph in graphs:
        found.update(observe(graph))
    return found


def _key(region: Region) -> Key:
    return region.fingerprint, region.shape_key


def region_keys(workload: Workload) -> set[Key]:
    """Fingerprint and shape key of every region of the model, by capturing it again. Raises as `prepare` does."""
    captures = [_capture(workload, case) for case in workload.cases[:MAX_CASES]]
    return {_key(region) for capture in captures for graph in capture.graphs for region in graph.regions}
