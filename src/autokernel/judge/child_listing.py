"""What one call runs, as its own process sees it: PyTorch's operators, Triton's kernels, functions of C++ libraries.

The candidate's process writes the list, so it is a claim, like its times: it shows a decoy or a call of the library
where nobody tampers with the process; a kernel that does can leave anything out. Nothing is recorded in any other call.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from autokernel.judge.protocol import TEXT_BYTES


def listed(call: Callable[[], object]) -> str:
    """The names of what `call` runs, each once, in order, with a blank between; as many as a reply holds."""
    names: dict[str, None] = {}

    def note(name: str) -> None:
        names[name] = None

    with contextlib.ExitStack() as stack:
        stack.enter_context(_triton(note))
        stack.enter_context(_native(note))
        stack.enter_context(_Operators(note))
        call()
    text = " ".join(names)
    return text if len(text) <= TEXT_BYTES else text[:TEXT_BYTES].rpartition(" ")[0]


class _Operators(TorchDispatchMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.note(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _triton(note: Callable[[str], None]) -> Iterator[None]:
    """Triton tells of every launch by its kernel's name."""
    try:
        from triton import knobs
    except ImportError:
        yield
        return

    def told(metadata: Any) -> None:
        note(f"triton.{metadata.get()['name']}")

    knobs.runtime.launch_enter_hook.add(told)
    try:
        yield
    finally:
        knobs.runtime.launch_enter_hook.remove(told)


@contextlib.contextmanager
def _native(note: Callable[[str], None]) -> Iterator[None]:
    """Functions of libraries that were opened with ctypes, which have a class for each library."""

    def called(function: Any, *args: Any) -> Any:
        note(f"cpp.{function.__name__}")
        return ctypes._CFuncPtr.__call__(function, *args)  # type: ignore[attr-defined]

    kinds = [one._FuncPtr for one in gc.get_objects() if issubclass(type(one), ctypes.CDLL)]
    for kind in kinds:
        kind.__call__ = called
    try:
        yield
    finally:
        for kind in kinds:
            del kind.__call__
