"""The run's own git repository, through libgit2. No git program, user identity, hook or global configuration is needed.

Layout of refs: `refs/heads/main` is the incumbent of every task; `refs/autokernel/pending/N` is the experiment being
judged; `reverted/N` and `lost/N` keep the source of what did not stay. Commits are built in memory: neither the index
nor the work tree is touched until a kernel is kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pygit2
from pygit2.enums import ConfigLevel, FileMode, RepositoryOpenFlag

from autokernel.errors import GitFailed, NotARun
from autokernel.loop.files import write_atomic

BRANCH = "refs/heads/main"
_LOCK_GRACE_SECONDS = 1.0

_CONFIG: dict[str, str | bool | int] = {
    "user.name": "autokernel",
    "user.email": "autokernel@localhost",
    "commit.gpgsign": False,
    "core.autocrlf": False,
    "core.logAllRefUpdates": False,  # a reflog is appended in place and could be torn by a kill
    "gc.auto": 0,
}


class Repository:
    """Raises GitFailed when libgit2 does."""

    def __init__(self, run: Path) -> None:
        self._run = run
        # a commit must be on the disk before the line that names it; the setting is the whole process's, and harmless
        pygit2.settings.enable_fsync_gitdir(True)
        with _own_configuration(), _failures(run):
            try:
                self._git = pygit2.Repository(str(run / ".git"), RepositoryOpenFlag.NO_SEARCH)
            except pygit2.GitError as error:
                if not (run / ".git").exists():
                    raise NotARun(path=run, detail="it has no git repository of its own") from error
                raise
            _ = self._git.config  # read now, while the user's global files are out of sight

    @classmethod
    def create(cls, run: Path, exclude: tuple[str, ...]) -> Repository:
        with _own_configuration(), _failures(run):
            git = pygit2.init_repository(str(run), initial_head="main")
            for name, value in _CONFIG.items():
                git.config[name] = value
        info = run / ".git" / "info"
        info.mkdir(exist_ok=True)
        write_atomic(info / "exclude", "".join(f"{pattern}\n" for pattern in exclude))
        return cls(run)

    # --- reading ------------------------------------------------------------------------------------------------

    def head(self) -> str:
        """The commit of the branch."""
        with _failures(self._run):
            return str(self._git.references[BRANCH].target)

    def parent(self, commit: str) -> str | None:
        with _failures(self._run):
            parents = self._commit(commit).parent_ids
            return str(parents[0]) if parents else None

    def contains(self, commit: str) -> bool:
        """Whether the branch has this commit."""
        with _failures(self._run):
            head = self.head()
            return head == commit or self._git.descendant_of(head, commit)

    def text(self, commit: str, path: str) -> str | None:
        """A file's content at a commit; None if there is no such file."""
        with _failures(self._run):
            try:
                entry = self._commit(commit).tree[path]
            except KeyError:
                return None
            if not isinstance(entry, pygit2.Blob):
                return None
            return entry.data.decode("utf-8", errors="replace")

    def diff(self, commit: str) -> str:
        """What a commit changed against its parent, as a unified diff."""
        with _failures(self._run):
            after = self._commit(commit)
            if not after.parents:
                return after.tree.diff_to_tree(swap=True).patch or ""
            return after.parents[0].tree.diff_to_tree(after.tree).patch or ""

    def refs(self, kind: str) -> dict[int, str]:
        """Experiment number → commit, of `refs/autokernel/<kind>/`."""
        prefix = f"refs/autokernel/{kind}/"
        with _failures(self._run):
            names = [name for name in self._git.references if name.startswith(prefix)]
            return {
                int(name[len(prefix) :]): str(self._git.references[name].target)
                for name in names
                if name[len(prefix) :].isdigit()
            }

    def holds(self, text: str) -> bool:
        """Whether this exact content is already in the history (or was proposed once)."""
        return pygit2.hash(text.encode()) in self._git

    # --- writing ------------------------------------------------------------------------------------------------

    def commit(self, files: dict[str, str], message: str, parent: str | None) -> str:
        """A commit on `parent` that changes only `files` (path → text). Moves no ref."""
        with _failures(self._run):
            index = pygit2.Index()
            if parent is not None:
                index.read_tree(self._commit(parent).tree)
            for path, text in files.items():
                index.add(pygit2.IndexEntry(path, self._git.create_blob(text.encode()), FileMode.BLOB))
            tree = index.write_tree(self._git)
            who = pygit2.Signature("autokernel", "autokernel@localhost")
            parents: list[pygit2.Oid | str] = [parent] if parent is not None else []
            return str(self._git.create_commit(None, who, who, message, tree, parents))

    def set_ref(self, kind: str, name: int | str, commit: str) -> None:
        with _failures(self._run):
            self._git.references.create(f"refs/autokernel/{kind}/{name}", commit, force=True)

    def drop_ref(self, kind: str, name: int | str) -> None:
        with _failures(self._run), contextlib.suppress(KeyError):
            self._git.references.delete(f"refs/autokernel/{kind}/{name}")

    def move_branch(self, commit: str) -> None:
        with _failures(self._run):
            self._git.references.create(BRANCH, commit, force=True)

    def match_index(self) -> None:
        """Make the index equal to the branch, so that `git status` in the run shows the work tree against it."""
        with _failures(self._run):
            index = self._git.index
            index.read_tree(self._commit(self.head()).tree)
            index.write()

    def clear_stale_locks(self) -> list[Path]:
        """Remove git's own lock files left by a kill. Only the holder of the run's lock may call it.

        A git command the user runs in the folder holds such a file for milliseconds; a second is more than enough.
        """
        deadline = time.monotonic() + _LOCK_GRACE_SECONDS
        while (found := self._locks()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in found:
            path.unlink(missing_ok=True)
        return found

    def _locks(self) -> list[Path]:
        git = self._run / ".git"
        return [*git.glob("*.lock"), *(git / "refs").rglob("*.lock")]

    def _commit(self, commit: str) -> pygit2.Commit:
        return self._git[commit].peel(pygit2.Commit)


@contextlib.contextmanager
def _failures(run: Path) -> Iterator[None]:
    try:
        yield
    except (pygit2.GitError, KeyError, ValueError, OSError) as error:
        raise GitFailed(path=run, detail=str(error) or type(error).__name__) from error


@contextlib.contextmanager
def _own_configuration() -> Iterator[None]:
    """Hide the user's and the system's git configuration: a broken or peculiar one must not decide over a run.

    The owner check goes too: a run in a mounted folder belongs to another user, and libgit2 runs no hooks.
    """
    levels = (ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL, ConfigLevel.PROGRAMDATA)
    paths = pygit2.settings.search_path
    before = {level: paths[level] for level in levels}
    checked = pygit2.settings.owner_validation
    try:
        pygit2.settings.owner_validation = False
        for level in levels:
            paths[level] = ""
        yield
    finally:
        pygit2.settings.owner_validation = checked
        for level, path in before.items():
            paths[level] = path


def user_code(path: Path | None) -> dict[str, str | bool]:
    """The git state of the code a run was made for: {commit, dirty}, or {} when it is in no repository."""
    if path is None:
        return {}
    with _own_configuration():
        try:
            found = pygit2.discover_repository(str(path.resolve().parent))
            if found is None:
                return {}
            git = pygit2.Repository(found)
            if git.is_bare or git.head_is_unborn:
                return {}
            dirty = any(flags != pygit2.enums.FileStatus.CURRENT for flags in git.status("no").values())
            return {"commit": str(git.head.target), "dirty": dirty}
        except (pygit2.GitError, KeyError, ValueError):
            return {}  # a note in run.toml, never a reason to stop
