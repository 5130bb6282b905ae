"""The three lines a user pastes, and the file that holds them."""

from __future__ import annotations

from pathlib import Path

from autokernel.records import KeptKernels, RunConfig

_KEPT = "winners.json"
_LIBRARIES = ("hf:", "timm:")
_ASKED = ("seq", "image", "workload", "random_weights", "trust_remote_code")
# the wording is for whoever reads use.py: it is the one thing that differs from the model as it was
_GRAPHS = """\
# It was proved with CUDA graphs: an output is valid until the model is called again. Clone what you keep longer.
"""

_FROM_FILE = '''\
"""The model of {name} with the kernels this run found. Needs autokernel and this folder; runs as it is."""

{load}
from autokernel.workload import load

model = load({target!r}, {options}).model  # or your own instance
{run}
{note}{apply}
'''

_FROM_OBJECTS = '''\
"""The kernels this run found, for your model. Needs autokernel and this folder: `from use import faster`."""

{load}


def faster(model):
    {run}
    {note}{apply}
    return model
'''


def use_lines(path: Path) -> tuple[str, str, str]:
    """The lines to paste where `model` exists. The path is absolute, so that they work from any folder."""
    return (
        "import autokernel",
        f"run = autokernel.Run.load({str(path.absolute())!r})",
        "model = run.apply(model)",
    )


def use_text(path: Path, config: RunConfig) -> str:
    """The text of use.py for the run at `path`.

    A run that was made from a file loads the model from that file again (the target is read as the command line did,
    from the current folder), so that `python use.py` works; a run of in-process objects gets a function instead. Where
    the run's verification left a model that runs as CUDA graphs, a comment says what that means for outputs. Raises
    BrokenFile or NewerSchema for a winners.json that can't be read.
    """
    load, run, apply = use_lines(path)
    from_objects = config.target == "python"
    note = (_GRAPHS + "    " * from_objects) if _replayed(path / _KEPT) else ""
    return (_FROM_OBJECTS if from_objects else _FROM_FILE).format(
        name=config.name,
        load=load,
        run=run,
        apply=apply,
        target=config.target if config.target.startswith(_LIBRARIES) else str(Path(config.target).absolute()),
        options=_options(config),
        note=note,
    )


def _options(config: RunConfig) -> str:
    """What `load` is given besides the target: always device, dtype and batch, the rest where it was asked for."""
    always = {name: getattr(config, name) for name in ("device", "dtype", "batch")}
    fields = type(config).model_fields
    asked = {name: getattr(config, name) for name in _ASKED if getattr(config, name) != fields[name].default}
    return ", ".join(f"{name}={value!r}" for name, value in (always | asked).items())


def _replayed(kept: Path) -> bool:
    """Whether outputs are a CUDA graph's own memory ("eager-graphs" hands out copies)."""
    return kept.exists() and KeptKernels.load(kept).compiled_as in ("reduce-overhead", "max-autotune-graphs")
