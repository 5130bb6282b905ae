"""Every error a user can meet, as a named class: what happened, what was expected, what to do now.

`str(error)` is the whole message a terminal shows; no traceback is printed for these. `exit_code` follows the command
line's convention: 1 the honest answer is no, 2 the user can fix it, 3 ours.
"""

from __future__ import annotations

from typing import ClassVar


class AutokernelError(Exception):
    """Base of all named errors. Subclasses set `template` and `remedy`; keyword arguments fill both."""

    template: ClassVar[str] = "{detail}"
    remedy: ClassVar[str] = ""
    exit_code: ClassVar[int] = 2

    def __init__(self, **values: object) -> None:
        self.values = values
        super().__init__(self.message())

    def message(self) -> str:
        text = self.template.format(**self.values)
        remedy = self.remedy.format(**self.values)
        return f"{text}\n{remedy}" if remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.values))


def _rebuild(kind: type[AutokernelError], values: dict[str, object]) -> AutokernelError:
    return kind(**values)


# --- targets and their inputs -------------------------------------------------------------------------------------


class TargetNotFound(AutokernelError):
    template = "There is no file {path}."
    remedy = "Give the path of a Python file (`file.py` in KernelBench form, or `file.py:name`)."


class TargetInvalid(AutokernelError):
    template = "{target} can't be used as a target: {detail}"
    remedy = (
        "A target file defines `Model`, `get_inputs()` and (if Model takes arguments) `get_init_inputs()`; "
        "`file.py:name` names a Module class, a Module instance, or a function returning (model, args, kwargs)."
    )


class ModelInvalid(TargetInvalid):
    """A target of a library."""

    remedy = (
        "hf:NAME takes a name on the hub, a local folder, or with --random-weights a class (`hf:LlamaConfig`, "
        "`hf:LlamaConfig(hidden_size=512)`); timm:NAME a model of timm. A `file.py:name` can build any model."
    )


class TargetFailed(AutokernelError):
    """The user's own code raised; `frames` holds their frames only."""

    template = "{target} failed while {doing}:\n{frames}"
    remedy = "Make `model(*inputs)` work in plain PyTorch first; the frames above are your own code's."


class UnsupportedTarget(AutokernelError):
    template = "{flag} means nothing for the target {target}."
    remedy = "It is for models of a library: `hf:NAME` and `timm:NAME`. A file makes its own example inputs."


class HubUnreachable(AutokernelError):
    template = "The model {name} is not on this machine, and the hub can't be reached."
    remedy = (
        "Check the network, or give a folder that holds the model; with --random-weights a class is enough "
        "(`hf:LlamaConfig`), and nothing is downloaded."
    )


class GatedModel(AutokernelError):
    template = "The model {name} is gated: its owner gives access to those who ask."
    remedy = (
        "Ask for it on the model's page, then log in with `hf auth login`; or measure its shape with --random-weights."
    )


class RemoteCode(AutokernelError):
    template = "The model {name} brings code of its own, which is not run unless you say so."
    remedy = "Read that code; if you trust it, add --trust-remote-code."


class BrokenExtra(AutokernelError):
    template = "{package} is installed, but it can't be imported beside this torch: {detail}"
    remedy = "{remedy}"


class CaptureFailed(AutokernelError):
    template = "No graph could be captured from {target}: {detail}"
    remedy = "Check that `torch.compile(model)` works on these inputs; the parts it can't trace can't be cut out."


class UnsupportedMode(AutokernelError):
    template = "{what} is not supported by this version."
    remedy = "{instead}"


# --- machine ------------------------------------------------------------------------------------------------------


class NoCompiler(AutokernelError):
    template = "No C++ compiler was found (looked for {looked_for})."
    remedy = "Install one (Debian/Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) or set CXX to its path."


class CompilerFailed(AutokernelError):
    template = "The C++ compiler {compiler} can't build a program: {detail}"
    remedy = "Run `autokernel doctor` for what is wrong with it."


class CompilerProcessDied(AutokernelError):
    """The process that kernels are compiled in; a candidate's own failure is never this."""

    template = "The process that compiles Triton kernels ended unexpectedly: {detail}"
    remedy = "Check that `python -c 'import torch, triton'` works; then run `autokernel doctor`."
    exit_code = 3


class DeviceUnavailable(AutokernelError):
    template = "--device {device} was asked for, but {detail}"
    remedy = "Use `--device cpu`, or run `autokernel doctor` on the machine that has the device."


class OutOfMemory(AutokernelError):
    template = "Out of memory while {doing}: {detail}"
    remedy = "Use a smaller batch or sequence, or a machine with more memory."


class NotGraphable(AutokernelError):
    """A call that can't be captured as a CUDA graph."""

    template = "This call of the model can't be a CUDA graph: {detail}."
    remedy = "Run it in another mode; its other baselines are not affected."


class SandboxUnavailable(AutokernelError):
    template = "Isolation {isolation} was asked for, but {detail}"
    remedy = (
        "Install bubblewrap (Debian/Ubuntu: `apt-get install bubblewrap`) or use `--isolation plain`, which is weaker."
    )


class MissingExtra(AutokernelError):
    template = "{what} needs the package {package}, which is not installed."
    remedy = "Install it with `pip install '{install}'`."


class UnknownName(AutokernelError):
    template = "There is no {kind} called {name}. Known: {known}."
    remedy = "Use one of the known names, or a dotted path `package.module:Class`."


class BadSetting(AutokernelError):
    template = "Setting {name}: {value} is not valid: {detail}"
    remedy = "{instead}"


# --- runs and tasks on disk ---------------------------------------------------------------------------------------


class NotARun(AutokernelError):
    template = "{path} is not an autokernel run: {detail}"
    remedy = "Give a folder that `autokernel optimize` made (it holds run.toml and results.tsv)."


class RunExists(AutokernelError):
    template = "{path} already exists and is not empty."
    remedy = "Choose another folder with --out, or `autokernel resume {path}` to go on with that run."


class RunMismatch(AutokernelError):
    template = "Run {path} was made for another model: {detail}"
    remedy = "Use the model the run was made for, or start a new run with `autokernel optimize`."


class RunLocked(AutokernelError):
    template = "Run {path} is in use by {owner}."
    remedy = "Wait for it to end, or stop that process; then try again."


class RunReadOnly(AutokernelError):
    template = "Run {path} can't be written to: {detail}."
    remedy = "Get write permission for its folder, or copy the run to where you have it."


class NewerSchema(AutokernelError):
    template = "{path} has schema {found}; this version reads up to schema {known}."
    remedy = "Upgrade autokernel (`pip install -U autokernel-torch`)."


class BrokenFile(AutokernelError):
    template = "{path} can't be read: {detail}"
    remedy = "Restore the file from the run's git history or from a backup."


class NotWritable(AutokernelError):
    template = "{path} can't be written: {detail}"
    remedy = "Name a file in a folder that exists and that you may write to."


class NoSuchExperiment(AutokernelError):
    template = "Run {path} has no experiment {number}; it has {known}."
    remedy = "`autokernel report {path}` lists the experiments."


class NoSuchTask(AutokernelError):
    template = "Run {path} has no task {task}. It has: {known}."
    remedy = "Use the number or the folder name of one of these tasks."


class KernelInvalid(AutokernelError):
    template = "{path} is not a kernel file: {detail}"
    remedy = "A kernel file defines `launch(*inputs, *outputs)` and LANGUAGE; see docs/reference/kernel-file.md."


class GitFailed(AutokernelError):
    template = "git failed in {path}: {detail}"
    remedy = "Check that the folder is writable and has free space, then `autokernel resume {path}`."


# --- judging ------------------------------------------------------------------------------------------------------


class JudgeUnsound(AutokernelError):
    """A control that must pass failed, or one that must fail passed: no verdict of this run could be trusted."""

    template = "The judge's self-check failed before the run: {detail}"
    remedy = "Run `autokernel doctor`; if it finds nothing, report this with the output of `autokernel doctor --json`."
    exit_code = 3


class SandboxDied(AutokernelError):
    template = "The judging process ended unexpectedly: {detail}"
    remedy = "Run `autokernel doctor`; if it finds nothing, report this with the output of `autokernel doctor --json`."
    exit_code = 3


class NotComputable(AutokernelError):
    """The float64 oracle of a task can't be built; the task is left without a verdict rather than judged badly."""

    template = "No trustworthy reference exists for {task}: {detail}"
    remedy = "The task stays as it is in the model; nothing is replaced."


class NotTimed(AutokernelError):
    """One side of a comparison can't be timed: its own failure, not the other side's."""

    template = "{what} can't be timed on {task}: {detail}"
    remedy = "Compare against another side (eager always works where the task itself does)."


class NotGenerated(AutokernelError):
    """The built-in generator has no rule for this region or schedule."""

    template = "The generator can't write {what}: {detail}"
    remedy = "The task stays listed; another author (an LLM, an agent, you) may write it: `autokernel submit`."


class EvaluationsSpent(AutokernelError):
    """Raised into an author that asks the judge too often for one proposal."""

    template = "{author} may ask for {limit} evaluations a proposal, and has."
    remedy = "Propose the best candidate so far; the next proposal has evaluations of its own."
