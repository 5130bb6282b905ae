"""A run folder: made whole or not at all, opened for reading at any time, for writing by one process.

run.toml  program.md  profile.json  tasks/NN-slug/    tracked by the run's own git
results.tsv  verdicts/                                the journal: untracked, appended, fsynced
use.py  proof.json  report.html  progress.png         untracked, written over
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from autokernel.errors import BrokenFile, GitFailed, NoSuchTask, NotARun, RunExists, RunMismatch
from autokernel.loop import manifest as manifests
from autokernel.loop import program, table
from autokernel.loop.files import sync_folder, write_atomic
from autokernel.loop.journal import RESULTS, VERDICTS, Journal, kernel_path
from autokernel.loop.lock import NAME as LOCK
from autokernel.loop.lock import RunLock
from autokernel.loop.manifest import Manifest
from autokernel.loop.repository import BRANCH, Repository, user_code
from autokernel.records import Decision, FirstIncumbent, Profile, RunConfig, Task, Trial, Verdict

_UNTRACKED = (
    f"/{RESULTS}",
    f"/{VERDICTS}/",
    f"/{LOCK}",
    "/use.py",
    "/proof.json",
    "/winners.json",
    "/report.html",
    "/progress.png",
    ".*.partial",
    "__pycache__/",
)


class RunFolder:
    """Make with `create` or `open`; a writer holds the run's lock until `close` (also a context manager)."""

    def __init__(self, path: Path, manifest: Manifest, journal: Journal, lock: RunLock | None) -> None:
        self.path = path
        self.manifest = manifest
        self.journal = journal
        self._lock = lock

    # --- making and opening ---------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        fill: Callable[[Path], Profile],
        *,
        versions: dict[str, str] | None = None,
        machine: dict[str, str | int | float | bool] | None = None,
        commitment: str | None = None,
        user_file: Path | None = None,
    ) -> Self:
        """A new run, open for writing.

        `fill(tasks_directory)` writes the task folders and returns the profile that names them. All is made in a hidden
        folder beside `path` and renamed at the end, so an error in between leaves nothing. Raises RunExists.
        """
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunExists(path=path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            (partial / "tasks").mkdir(parents=True)
            (partial / VERDICTS).mkdir()
            profile = fill(partial / "tasks")
            tasks = tuple(_load_tasks(partial))
            manifest = Manifest(
                config=config,
                model=manifests.model_hash(tasks),
                created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                versions=versions or {},
                machine=machine or {},
                seeds=manifests.Seeds(commitments=(commitment,) if commitment else ()),
                user_code=user_code(user_file),
            )
            _write_first_files(partial, manifest, profile, tasks)
            lock = RunLock(partial)
            try:
                partial.rename(path)
            except OSError as error:
                lock.release()
                raise RunExists(path=path) from error
            sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return cls(path, manifest, Journal(path, writable=True), lock)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Self:
        """Raises NotARun, NewerSchema, BrokenFile; for a writer also RunLocked. A reader needs no lock."""
        path = path.absolute()
        manifest = manifests.read(path)
        for name in ("tasks", ".git"):
            if not (path / name).is_dir():
                raise NotARun(path=path, detail=f"its folder {name} is missing")
        if not writable:
            if not (path / RESULTS).exists():
                raise NotARun(path=path, detail=f"it holds no {RESULTS}")
            return cls(path, manifest, Journal(path, writable=False), None)
        lock = RunLock(path)
        try:
            return cls(path, manifest, Journal(path, writable=True), lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what it holds --------------------------------------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        return self.manifest.config

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.journal.trials

    def profile(self) -> Profile:
        return Profile.load(self.path / "profile.json")

    def tasks(self) -> tuple[Task, ...]:
        return tuple(_load_tasks(self.path))

    def task_ids(self) -> tuple[str, ...]:
        return tuple(path.name for path in sorted((self.path / "tasks").iterdir()) if path.is_dir())

    def task_id(self, name: str) -> str:
        """The id meant by "3", "03", "03-add-rms-norm" or a path to its folder. Raises NoSuchTask."""
        wanted = Path(name).name
        ids = self.task_ids()
        if wanted in ids:
            return wanted
        found = [task for task in ids if wanted.isdigit() and task.partition("-")[0].lstrip("0") == wanted.lstrip("0")]
        if len(found) != 1:
            raise NoSuchTask(path=self.path, task=name, known=", ".join(ids) or "none")
        return found[0]

    def task_folder(self, task: str) -> Path:
        return self.path / "tasks" / task

    def kernel_file(self, task: str) -> Path:
        return self.path / kernel_path(task)

    def first_incumbent(self, task: str) -> FirstIncumbent | None:
        path = self.path / VERDICTS / f"first-{task}.json"
        return FirstIncumbent.load(path) if path.exists() else None

    def spent_seconds(self) -> float:
        """Wall time of all experiments so far: what a resumed run has used of its budget."""
        return sum(trial.seconds for trial in self.trials)

    def winners(self) -> dict[str, tuple[Trial, Verdict]]:
        """Task → its incumbent's trial and verdict, for the tasks whose kernel is confirmed ahead of PyTorch."""
        kept = {trial.task: trial for trial in self.trials if trial.decision is Decision.kept}
        found = {task: (trial, self.journal.verdict(trial.experiment)) for task, trial in kept.items()}
        return {task: pair for task, pair in found.items() if pair[1].wins}

    # --- changes --------------------------------------------------------------------------------------------------

    def write_first_incumbent(self, first: FirstIncumbent) -> None:
        write_atomic(self.path / VERDICTS / f"first-{first.task}.json", first.dump())

    def write(self, name: str, text: str) -> Path:
        """A file at the top of the run (use.py, proof.json, ...), whole or absent."""
        path = self.path / name
        write_atomic(path, text)
        return path

    def add_session(self, commitment: str | None, config: RunConfig | None = None) -> None:
        """Note a resumed run in run.toml: its new seeds' commitment, a raised budget."""
        old = self.manifest
        commitments = (*old.seeds.commitments, *((commitment,) if commitment else ()))
        update = {"seeds": manifests.Seeds(commitments=commitments), "config": config or old.config}
        self.manifest = old.model_copy(update=update)
        write_atomic(self.path / manifests.NAME, self.manifest.toml())
        self.journal.commit_files((manifests.NAME,), "Run resumed")

    def check_model(self, found: Collection[tuple[str, str]]) -> None:
        """Raises RunMismatch when a task's region is not in the model: `found` are its fingerprints and shape keys."""
        mine = {(task.fingerprint, task.shape_key) for task in self.tasks()}
        theirs = set(found)
        if mine <= theirs:
            return
        detail = (
            f"of its {len(mine)} regions {len(mine & theirs)} occur in this model, "
            f"and {len(theirs - mine)} of this model's are not in the run"
        )
        raise RunMismatch(path=self.path, detail=detail)


def _load_tasks(run: Path) -> Iterable[Task]:
    for folder in sorted((run / "tasks").iterdir()):
        if folder.is_dir():
            task = Task.load(folder / "task.json")
            if task.id != folder.name:
                raise BrokenFile(path=folder / "task.json", detail=f"its id is {task.id}, its folder {folder.name}")
            yield task


def _write_first_files(run: Path, manifest: Manifest, profile: Profile, tasks: tuple[Task, ...]) -> None:
    write_atomic(run / "profile.json", profile.dump())
    write_atomic(run / program.NAME, program.program(manifest.config, tasks))
    write_atomic(run / manifests.NAME, manifest.toml())
    table.repair(run / RESULTS)
    names = [manifests.NAME, program.NAME, "profile.json"]
    names += [str(path.relative_to(run)) for path in sorted((run / "tasks").rglob("*")) if path.is_file()]
    names = [name for name in names if "__pycache__" not in name]
    try:
        files = {name: (run / name).read_text(encoding="utf-8") for name in names}
    except (OSError, ValueError) as error:
        raise GitFailed(path=run, detail=str(error)) from error
    repository = Repository.create(run, _UNTRACKED)
    commit = repository.commit(files, f"Run of {manifest.config.target}: {len(tasks)} tasks", None)
    repository.move_branch(commit)
    repository.match_index()


__all__ = ["BRANCH", "RunFolder"]
