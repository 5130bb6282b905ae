"""Exceptions of the user's code as named errors: their frames, not ours and not torch's."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from autokernel.errors import AutokernelError, OutOfMemory, TargetFailed

_LIBRARIES = (
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep + "autokernel",
    sysconfig.get_paths()["stdlib"],
    sysconfig.get_paths()["purelib"],
    "<frozen",
)
_MEMORY = ("can't allocate memory", "DefaultCPUAllocator", "out of memory", "not enough memory", "std::bad_alloc")
_MOST_FRAMES = 8


@contextlib.contextmanager
def user_code(target: str, doing: str, path: Path | None = None) -> Iterator[None]:
    """Whatever the user's code raises becomes TargetFailed or OutOfMemory. `path`: their file, always shown.

    `SystemExit` counts as a failure of theirs too; Ctrl-C passes through.
    """
    try:
        yield
    except AutokernelError:
        raise
    except (Exception, SystemExit) as error:
        raise as_named(error, target, doing, path) from error


def as_named(error: BaseException, target: str, doing: str, path: Path | None = None) -> AutokernelError:
    """The named error for an exception of the user's code."""
    if is_out_of_memory(error):
        return OutOfMemory(doing=doing, detail=str(error).strip().splitlines()[0] if str(error) else "MemoryError")
    return TargetFailed(target=target, doing=doing, frames=user_frames(error, path))


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY)


def user_frames(error: BaseException, path: Path | None = None) -> str:
    """The traceback without library frames, innermost last, shortened, and the exception's own line."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (path is not None and frame.filename == str(path)) or not frame.filename.startswith(_LIBRARIES)
    ]
    lines = [line.rstrip() for line in traceback.format_list(own[-_MOST_FRAMES:])]
    if len(own) > _MOST_FRAMES:
        lines.insert(0, f"  ... {len(own) - _MOST_FRAMES} frames more")
    last = traceback.format_exception_only(type(error), error)
    return "\n".join([*lines, "".join(last).rstrip()])
