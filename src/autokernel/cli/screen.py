"""Where a command's words go, and how it ends.

Progress goes to standard output, or to standard error when standard output carries JSON. A named error is its message
and its exit status; anything else is ours: a short message, the traceback in a file, or on the screen with -v.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from rich.console import Console, RenderableType

from autokernel.errors import AutokernelError, NotWritable
from autokernel.loop.signals import Stopped

if TYPE_CHECKING:
    from autokernel.doctor import Check
    from autokernel.doctor.self_test import Outcome, SelfTest

OURS = 3
INTERRUPTED = 130  # as shells give it for Ctrl-C
PLAIN_WIDTH = 120  # of tables where the output is a file or a pipe


class Screen:
    """One command's output. As a context manager it turns exceptions into messages and exit statuses."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self._as_json, self._quiet, self._verbose = as_json, quiet, verbose
        self._out = _console(stderr=False)
        self._progress = _console(stderr=True) if as_json else self._out
        self._errors = _console(stderr=True)
        self._answers: TextIO | None = None  # standard output, while the user's code prints elsewhere

    def say(self, text: str) -> None:
        """A line of progress; nothing with -q. Brackets are the text's own, not markup."""
        if not self._quiet:
            self._progress.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, *what: RenderableType) -> None:
        """The answer, as a table or text; nothing when the answer is JSON."""
        if not self._as_json:
            self._out.print(*what, highlight=False, sep="\n", crop=False)  # what is to be copied may be longer

    def show_diff(self, diff: str) -> None:
        """A unified diff: coloured on a terminal, else as it is."""
        if self._as_json:
            return
        if self._out.is_terminal:
            from rich.syntax import Syntax

            self._out.print(Syntax(diff, "diff", background_color="default", word_wrap=True))
        else:
            self.write(diff)

    def write(self, text: str) -> None:
        """Text as it is, for other programs to read: a diff, a path, JSON."""
        (self._answers or sys.stdout).write(text if text.endswith("\n") else text + "\n")

    def write_json(self, data: Any) -> None:
        """The answer as JSON; nothing unless --json was given."""
        if self._as_json:
            self.write(data if isinstance(data, str) else json.dumps(data, indent=2))

    def check_writable(self, path: Path | None) -> None:
        """Raises NotWritable for a file that could not be written later; nothing is left behind."""
        if path is None:
            return
        existed = path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise NotWritable(path=path, detail=error.strerror) from error
        if not existed:
            path.unlink()

    def write_file(self, path: Path, text: str) -> None:
        """A file the user asked for, and a line that says so. Raises NotWritable."""
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise NotWritable(path=path, detail=error.strerror) from error
        self.say(f"{path} written")

    def __enter__(self) -> Screen:
        """With --json standard output is the answer's alone: what the user's own code prints goes to standard error."""
        if self._as_json:
            self._answers, sys.stdout = sys.stdout, sys.stderr
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answers is not None:
            sys.stdout, self._answers = self._answers, None
        if isinstance(error, AutokernelError):
            self._end(str(error), error.exit_code, error)
        if isinstance(error, Stopped):
            self._end(f"Stopped by {error}.", INTERRUPTED, error)
        if isinstance(error, KeyboardInterrupt):
            self._end("Interrupted. A run that was begun goes on with `autokernel resume RUN`.", INTERRUPTED, error)
        if isinstance(error, Exception) and not isinstance(error, (typer.Exit, typer.Abort, BrokenPipeError)):
            self._end(self._unexpected(error), OURS, error)

    def _unexpected(self, error: Exception) -> str:
        with tempfile.NamedTemporaryFile("w", prefix="autokernel-crash-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
        return (
            f"This is an error in autokernel: {type(error).__name__}: {error}\n"
            f"The traceback is in {file.name}; please report it together with the output of `autokernel doctor --json`."
        )

    def _end(self, message: str, status: int, error: BaseException) -> NoReturn:
        if self._verbose:
            traceback.print_exception(error)
        self._errors.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(status) from error


def diagnosis(checks: tuple[Check, ...]) -> RenderableType:
    """The doctor's lines; a remedy stands below the line it is for."""
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\n{check.remedy}", style="dim")
        table.add_row(Text(check.status, style=styles[check.status]), check.name, found)
    return table


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=max(console.width, PLAIN_WIDTH))


def case_line(case: Outcome) -> str:
    """ "ok    nothing written                  rejected at smoke: not_written   0.4 s"."""
    mark = {True: "ok", False: "WRONG", None: "-"}[case.as_expected]
    found = f"{case.verdict}: {case.reason}" if case.as_expected is None else _found(case)
    line = f"{mark:5} {case.name:70} {found:44} {case.seconds:5.1f} s"
    return line if case.as_expected is not False else f"{line}\n      expected {case.expected}"


def _found(case: Outcome) -> str:
    return case.verdict if case.verdict == "accepted" else f"{case.verdict} at {case.stage}: {case.reason}"


def self_test_summary(found: SelfTest) -> str:
    """How many of each, and what to do about what is wrong."""
    counts = {kind: sum(case.as_expected is kind for case in found.cases) for kind in (True, False, None)}
    lines = [f"{counts[True]} as expected, {counts[False]} not, {counts[None]} not run; isolation {found.isolation}"]
    if len(found.cases) == 1 and counts[False]:
        lines.append("An honest kernel was refused, so the rest was left out: see `autokernel doctor`.")
    elif counts[False]:
        lines.append("This judge can't be trusted here. Please report it with the output of --json.")
    if counts[None]:
        lines.append("Install bubblewrap for the rest (Debian/Ubuntu: `apt-get install bubblewrap`).")
    return "\n".join(lines)
