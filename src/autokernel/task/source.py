"""Reference files as Python modules of a name of their own."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import logging
import types
from collections.abc import Iterator
from pathlib import Path

from autokernel.errors import BrokenFile


def module_from_text(text: str, name: str) -> types.ModuleType:
    """Execute the text of a reference.py; tracebacks show its lines. Raises what executing raises."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    filename = f"<{name}/reference.py {digest}>"
    module = types.ModuleType(f"_autokernel_reference_{digest}")
    module.__file__ = filename
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def module_from_file(path: Path) -> types.ModuleType:
    """Execute a reference.py. Raises BrokenFile when it can't be read or run."""
    try:
        text = path.read_text(encoding="utf-8")
        return module_from_text(text, path.parent.name)
    except (OSError, ValueError, SyntaxError, ImportError, NameError, AttributeError, TypeError) as error:
        raise BrokenFile(path=path, detail=f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def quiet_tracing() -> Iterator[None]:
    """Torch logs each shape error met on fake tensors; where sizes are tried out, an error is an answer, not news."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
