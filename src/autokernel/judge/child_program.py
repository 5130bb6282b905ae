"""A program in the place of a child: forked from the zygote like one, then exec'd. Same namespaces, limits and end.

For tools that must start what they look at. What the program does and says is as untrusted as what a child does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NoReturn

FIRST_FD = 200  # the descriptors it is given are 200, 201, ... in it
CANNOT_START = 127  # its exit status then; its stderr says why


def start(job: dict[str, Any], given: Sequence[int], others: Sequence[int]) -> NoReturn:
    """Become the program `job["command"]`, with `job["environment"]` beside this process's. Never returns.

    `given`: descriptors for it, in order; `others`: those that are none of its business.
    """
    for fd in others:
        os.close(fd)
    for number, fd in enumerate(given):
        os.dup2(fd, FIRST_FD + number, inheritable=True)
        os.close(fd)
    command: list[str] = job["command"]
    try:
        os.execve(command[0], command, {**os.environ, **job["environment"]})
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}".encode())
        os._exit(CANNOT_START)
