"""The Triton language: check by ast, compile without a GPU in sandboxed processes, hand over a cache folder."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from autokernel import settings
from autokernel.errors import MissingExtra, SandboxUnavailable, UnsupportedMode
from autokernel.languages import Artifact, CompileFailure, Finding
from autokernel.languages.triton import binaries, fence, folders, targets
from autokernel.languages.triton import source as reading
from autokernel.languages.triton.pool import Ended, Pool
from autokernel.records import Task, TensorSpec

LOG_LIMIT = 4000  # characters of Triton's words that an author is shown
_ANSWER_BYTES = 1 << 17
_JOB, _ANSWER, _CACHE = "job.json", "answer.json", "cache"  # as in worker.py, which imports torch


@dataclass
class _Job:
    """One compilation, from its submission to its result; `lock` lets one thread turn the one into the other."""

    sha256: str
    folder: Path
    done: Path
    pool: Pool
    number: int
    future: Future[Ended]
    lock: threading.Lock = field(default_factory=threading.Lock)
    result: Artifact | CompileFailure | None = None


class Triton:
    """Compiles for `target` ("cuda:90", "hip:gfx942"; None: this machine's device, found without making a context).

    `deadline`: seconds one compilation may take. `parallel`: compilations at once (None: the cores but two).
    `isolation` None: as the settings say. `memory_bytes`: what one worker may allocate. Use it as a context or `close`
    it; it also closes when this process exits. Artifacts live until then.
    """

    name = "triton"

    def __init__(
        self,
        target: str | None = None,
        deadline: float = 120.0,
        *,
        parallel: int | None = None,
        isolation: Literal["auto", "bubblewrap", "plain"] | None = None,
        memory_bytes: int | None = 8 << 30,
    ) -> None:
        self.target, self.deadline = target, deadline
        self.parallel = parallel or max(1, len(os.sched_getaffinity(0)) - 2)
        self._isolation, self._memory_bytes = isolation, memory_bytes
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] = {}
        self._count = 0
        self._root: Path | None = None
        self._pool: Pool | None = None
        self._owner = os.getpid()

    def check(self, source: str) -> tuple[Finding, ...]:
        """Findings from the text of a kernel file alone."""
        return reading.findings(source)

    def compile(
        self, source: str, task: Task | None = None, target: str | None = None, also: Sequence[Task] = ()
    ) -> Artifact:
        """Compile every kernel that `launch` starts for the layouts of `task`, or find them compiled.

        The artifact's directory is a Triton cache folder: a process that has it as TRITON_CACHE_DIR, where it is or
        copied by `folders.place`, compiles nothing and builds no launcher. `also`: the task at other sizes; what
        can't be compiled for those is only said in the log. Raises `CompileFailure` (a deadline too), `MissingExtra`,
        `UnsupportedMode` (no task), `UnknownName`, `DeviceUnavailable`, `SandboxUnavailable`, `CompilerProcessDied`.
        """
        fatal = [finding for finding in self.check(source) if finding.fatal]
        if fatal:
            raise CompileFailure("\n".join(f"line {finding.line}: {finding.message}" for finding in fatal))
        if task is None:
            raise UnsupportedMode(what="Compiling a Triton kernel without its task", instead="Give the task.")
        key, job = self._submit(source, task, target, also)
        if not job.future.done():
            job.pool.wait_started()
            job.pool.first(job.number)
        ended = job.future.result()
        with job.lock:
            if job.result is None:
                job.result = self._finish(job, ended)
        if isinstance(job.result, CompileFailure):
            if ended.end != "ended":  # a busy machine may be the reason: not remembered
                self._jobs.pop(key, None)
            raise CompileFailure(job.result.log)
        return job.result

    def prefetch(self, sources: Iterable[str], task: Task, target: str | None = None) -> None:
        """Start compiling in the background; `compile` of the same text then takes the result. Raises as `compile`,
        but for `CompileFailure`.
        """
        for source in sources:
            if not any(finding.fatal for finding in self.check(source)):
                self._submit(source, task, target, ())

    def start(self) -> None:
        """Begin to start the compiling processes, which takes seconds, before there is something to compile."""
        _require_triton()
        with self._lock:
            self._open()

    def isolation(self) -> fence.Isolation:
        """How the compiling processes are shut in. Raises `SandboxUnavailable`."""
        wanted = self._isolation or settings.load().isolation
        problem = fence.bubblewrap_problem() if wanted != "plain" else "not asked for"
        if wanted == "bubblewrap" and problem:
            raise SandboxUnavailable(isolation=wanted, detail=problem)
        return "plain" if problem else "bubblewrap"

    def close(self) -> None:
        """End the compiling processes and delete what was compiled. A later `compile` starts anew."""
        with self._lock:
            pool, self._pool = self._pool, None
            root, self._root = self._root, None
            self._jobs = {}
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return  # a fork of the owner: the processes and the folder aren't its
        if pool is not None:
            pool.close()
        if root is not None:
            shutil.rmtree(root, onerror=_make_removable)

    def __enter__(self) -> Triton:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, source: str, task: Task, target: str | None, also: Sequence[Task]) -> tuple[str, _Job]:
        _require_triton()
        chip = targets.resolve(target or self.target)
        layouts = [_layout(one) for one in (task, *also)]
        job = {"source": source, "settings": layouts, "chip": chip.to_json()}
        words = json.dumps([job, metadata.version("triton")], sort_keys=True)
        key = hashlib.sha256(words.encode()).hexdigest()
        with self._lock:
            if key not in self._jobs:
                self._jobs[key] = self._start(source, key, job)
            return key, self._jobs[key]

    def _start(self, source: str, key: str, job: dict[str, Any]) -> _Job:
        root, pool = self._open()
        self._count += 1
        folder = root / "work" / str(self._count)
        folder.mkdir()
        (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")
        number, future = pool.submit(folder, self.deadline)
        sha256 = hashlib.sha256(source.encode()).hexdigest()
        return _Job(sha256, folder, root / "done" / f"{key[:16]}-{self._count}", pool, number, future)

    def _open(self) -> tuple[Path, Pool]:
        if self._root is None or self._pool is None:
            self._root = Path(tempfile.mkdtemp(prefix="autokernel-triton-")).resolve()
            for name in ("work", "done"):
                (self._root / name).mkdir()
            self._owner = os.getpid()
            self._pool = Pool(self._root / "work", self.isolation(), self.parallel, self._memory_bytes)
            atexit.register(self.close)
        return self._root, self._pool

    def _finish(self, job: _Job, ended: Ended) -> Artifact | CompileFailure:
        """Take over what a worker left; its folder is deleted."""
        try:
            answer = _answer(job.folder / _ANSWER)
            if ended.end == "late":
                return CompileFailure(f"compiling took more than {self.deadline:g} s")
            if ended.end != "ended" or answer is None:
                return CompileFailure(_death(ended))
            if answer["kind"] in ("compile", "launch"):
                return CompileFailure(shorten(answer["error"]))
            folders.place(job.folder / _CACHE, job.done)
        except folders.TooLarge as error:
            return CompileFailure(str(error))
        finally:
            shutil.rmtree(job.folder, onerror=_make_removable)
        job.done.mkdir(exist_ok=True)
        log = list(answer["notes"])
        if answer["kind"]:
            log.insert(0, f"launch could not be followed without a GPU: {answer['error']}")
        if not any(job.done.glob("*/*.json")):
            log.insert(0, "no kernel was compiled: launch starts none that is known before it runs")
        resources = binaries.of_folder(job.done)
        return Artifact(job.sha256, job.done, resources, ended.seconds, shorten("\n".join(log)))


def shorten(log: str, limit: int = LOG_LIMIT) -> str:
    """The beginning and the end of Triton's words: where it happened, and what."""
    text = log.strip()
    return text if len(text) <= limit else f"{text[: limit // 2]}\n…\n{text[-limit // 2 :]}"


def _layout(task: Task) -> list[dict[str, Any]]:
    def one(spec: TensorSpec) -> dict[str, Any]:
        return {"dtype": spec.dtype, "shape": spec.shape, "stride": spec.stride, "offset": spec.offset}

    return [one(spec) for spec in (*task.inputs, *task.outputs)]


def _answer(path: Path) -> dict[str, Any] | None:
    """What a worker claims, if it is of the form due: kind and error are texts, notes a list of texts."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read(_ANSWER_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    try:
        made = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(made, dict) or made.get("kind") not in ("", "compile", "launch", "unfollowed"):
        return None
    notes = made.get("notes")
    whole = isinstance(made.get("error"), str) and isinstance(notes, list) and all(isinstance(n, str) for n in notes)
    return made if whole else None


def _death(ended: Ended) -> str:
    number = ended.status - 100
    if number == 9:
        return "the compiling process was killed (out of memory?)"
    how = f"signal {number}" if 0 < number < 65 else "no answer"
    return f"the compiling process ended without a result ({how})"


def _require_triton() -> None:
    for package in ("torch", "triton"):
        if util.find_spec(package) is None:
            raise MissingExtra(what="The Triton language", package=package, install=package)


def _make_removable(function: Any, path: str, _: Any) -> None:
    """For `rmtree`: a candidate may have taken away the permissions of its own folders."""
    try:
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        function(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)  # what resists lies in a folder that the system clears
