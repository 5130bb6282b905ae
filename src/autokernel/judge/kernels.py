"""From text to what a child runs: kernel files by their language, ModelNew files, and the opponents of one task."""

from __future__ import annotations

import ast
import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from autokernel.errors import NotTimed
from autokernel.judge import Opponent
from autokernel.judge.cases import UNREADABLE
from autokernel.judge.children import Kernel
from autokernel.languages import Artifact, CompileFailure, Finding, Language
from autokernel.languages.triton.folders import place
from autokernel.records import Resources
from autokernel.task import LoadedTask
from autokernel.workload import load as load_workload


class Kernels:
    """Builds kernels for one task. `languages` are asked before the registered ones.

    `folder`: what the sandbox binds into every child; each kernel's library is put there under its content's name.
    `threads`: what children use, for opponents that are compiled for a number of threads.
    """

    def __init__(
        self, loaded: LoadedTask, folder: Path | None, threads: int, languages: Mapping[str, Language]
    ) -> None:
        self.loaded = loaded
        self.threads = threads
        self.folder = folder
        self.languages = languages
        self._inductor: Kernel | None = None
        self._names: tuple[str, ...] | None = None

    def check(self, source: str) -> tuple[Finding, ...]:
        """What can be said from the text alone; a fatal finding ends the judging."""
        try:
            tree = ast.parse(source)
        except UNREADABLE as error:
            line = getattr(error, "lineno", None) or 1
            words = getattr(error, "msg", None) or str(error) or "too deeply nested"
            return (Finding(line, f"it is not Python: {words}", fatal=True),)
        if _defines(tree, "ModelNew") and not _defines(tree, "launch"):
            return ()
        name = _language(tree)
        if name is None:
            known = "it has no LANGUAGE (a text), and no class ModelNew"
            return (Finding(1, known, fatal=True),)
        language = self._find(name)
        if language is None:
            return (Finding(1, f"LANGUAGE {name!r} is not known here", fatal=True),)
        try:
            return language.check(source)
        except UNREADABLE as error:
            return (Finding(1, f"it can't be read: {type(error).__name__}: {error}", fatal=True),)

    def is_model(self, source: str) -> bool:
        tree = ast.parse(source)
        return _defines(tree, "ModelNew") and not _defines(tree, "launch")

    def build(self, source: str) -> tuple[Kernel, Resources]:
        """Compile, and say how to run it. The source has passed `check`. Raises CompileFailure, NoCompiler."""
        if self.is_model(source):
            return Kernel("model_new", source, self._parameters(), self._reference()), Resources()
        name = _language(ast.parse(source))
        language = self._find(name) if name is not None else None
        if language is None:
            raise ValueError("a source that has not passed check")
        artifact = language.compile(source, self.loaded.task, self._target())
        if artifact.directory is None:
            return Kernel("source", source), artifact.resources
        if self.folder is None:
            raise ValueError("a compiled kernel needs a sandbox with a cpp_cache")
        if name == "triton":  # each kernel's cache is its own: what one writes there, no other will read
            kernel = Kernel("source", source, caches=self._own_cache(artifact), note=artifact.log)
            return kernel, artifact.resources
        self._expose(artifact.directory, self.folder)
        return Kernel("source", source), artifact.resources

    def prefetch(self, sources: Sequence[str]) -> None:
        """Start compiling what will be judged soon, where the language can do so beside other work."""
        for source in sources:
            tree = ast.parse(source)
            name = _language(tree)
            language = self._find(name) if name is not None else None
            begin = getattr(language, "prefetch", None)
            if begin is not None:
                begin([source], self.loaded.task, self._target())

    def _target(self) -> str | None:
        """The chip in use, for languages that compile for one. None: the CPU."""
        if self.loaded.task.device_class != "cuda":
            return None
        import torch

        major, minor = torch.cuda.get_device_capability()
        return f"cuda:{major}{minor}" if torch.version.hip is None else None

    def _own_cache(self, artifact: Artifact) -> tuple[tuple[str, Path], ...]:
        assert self.folder is not None and artifact.directory is not None
        target = self.folder / f"triton-{hashlib.sha256(str(artifact.directory).encode()).hexdigest()[:24]}"
        if not target.exists():
            partial = Path(tempfile.mkdtemp(dir=self.folder))
            (partial / "cache").mkdir()
            place(artifact.directory, partial / "cache")
            (partial / "cache").replace(target)
            partial.rmdir()
        return (("TRITON_CACHE_DIR", target),)

    def _expose(self, built: Path, folder: Path) -> None:
        """Put what was built where children can read it."""
        for file in built.iterdir():
            target = folder / file.name
            if file.suffix == ".so" and not target.exists():
                shutil.copyfile(file, target.with_suffix(".part"))
                target.with_suffix(".part").replace(target)

    def opponent(self, opponent: Opponent, copies: bool = False) -> Kernel:
        """What to time against. Raises NotTimed when it can't be made."""
        if opponent.kind == "kernel":
            if opponent.source is None or any(finding.fatal for finding in self.check(opponent.source)):
                raise NotTimed(what="the kernel to beat", task=self.loaded.task.id, detail="it is no kernel file")
            try:
                return self.build(opponent.source)[0]
            except CompileFailure as failure:
                detail = f"it does not compile: {failure.log}"
                raise NotTimed(what="the kernel to beat", task=self.loaded.task.id, detail=detail) from failure
        if opponent.kind == "eager":
            return Kernel("eager", self._reference(), self._parameters(), copies=copies)
        return self._under_inductor(copies)

    def _under_inductor(self, copies: bool) -> Kernel:
        from autokernel.judge import inductor

        if self._inductor is None or self._inductor.copies != copies:
            self._inductor = inductor.kernel(
                self.loaded, self._reference(), self._parameters(), copies=copies, threads=self.threads
            )
        return self._inductor

    def _reference(self) -> str:
        """The text of the file that defines `Model`."""
        path = self.loaded.path
        if path is None:
            raise NotTimed(what="eager", task=self.loaded.task.id, detail="it has no reference file")
        return (path / "reference.py" if path.is_dir() else path).read_text(encoding="utf-8")

    def _parameters(self) -> tuple[str, ...]:
        """Names of the trailing inputs that a KernelBench file's module owns; a task folder's Model is given them."""
        path = self.loaded.path
        if path is None or path.is_dir():
            return ()
        if self._names is None:
            model = load_workload(str(path), device=self.loaded.task.device_class).model
            assert isinstance(model, nn.Module)
            self._names = (*dict(model.named_parameters()), *dict(model.named_buffers()))
        return self._names

    def _find(self, name: str) -> Language | None:
        if name in self.languages:
            return self.languages[name]
        from autokernel.errors import UnknownName
        from autokernel.languages import get_language

        try:
            return get_language(name)
        except UnknownName:
            return None


def _language(tree: ast.Module) -> str | None:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            named = any(isinstance(target, ast.Name) and target.id == "LANGUAGE" for target in statement.targets)
            if named and isinstance(statement.value.value, str):
                return statement.value.value
    return None


def _defines(tree: ast.Module, name: str) -> bool:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(statement, kinds) and statement.name == name for statement in tree.body)
