"""Targets: what the user typed, or objects of this process, as a model with example inputs.

    file.py        KernelBench form: `Model`, `get_inputs()`, `get_init_inputs()` (optional)
    file.py:name   a Module class (with get_init_inputs/get_inputs of the same file), a Module instance (with
                   get_inputs), or a function without arguments that returns (model, args), (model, args, kwargs),
                   or a list of weighted ones: [(weight, (model, args, kwargs)), ...] with the same model
    hf:NAME        a model of transformers (hub.py); timm:NAME, one of timm (vision.py)

Models are put into eval mode, on the device, and (if asked) into a dtype; example inputs follow. Random weights and
inputs are drawn under a fixed seed, and the caller's random state is restored. Errors in the user's own code come out
as `TargetFailed` with the user's frames only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autokernel.errors import (
    DeviceUnavailable,
    OutOfMemory,
    TargetFailed,
    TargetInvalid,
    TargetNotFound,
    UnsupportedTarget,
)
from autokernel.workload import SEED, Case, Example, Workload
from autokernel.workload.failures import user_code

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def load_target(
    target: str,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    batch: int | None = None,
    example: Example | None = None,
) -> Workload:
    """Load a command-line target. `batch` repeats or cuts the first dim of a file's example tensors.

    Raises TargetNotFound, TargetInvalid, TargetFailed, UnsupportedTarget, DeviceUnavailable, OutOfMemory, and for
    models of libraries MissingExtra, BrokenExtra, HubUnreachable, GatedModel, RemoteCode.
    """
    scheme, _, rest = target.partition(":")
    if scheme in ("hf", "timm") and rest and not Path(target).exists():
        return _from_library(scheme, rest, target, device, dtype, example or Example(batch=batch or 1))
    _refuse_for_files(target, example)
    path, name = _split(target)
    where = torch.device(_device(device))
    with _seeded(where):
        module = _import(path, target)
        model, sets = _built(module, name, target, where)
    label = path.stem if name in (None, "Model") else f"{path.stem}-{name}"
    cases = tuple(Case(args=tuple(args), kwargs=dict(kwargs), weight=weight) for weight, args, kwargs in sets)
    workload = _placed(Workload(name=label, model=model, cases=cases, target=target, path=path), where, dtype, batch)
    _try_out(workload)
    return workload


def _from_library(scheme: str, name: str, target: str, device: str, dtype: str | None, example: Example) -> Workload:
    """A model of transformers or timm with inputs made for it."""
    where = torch.device(_device(device))
    to = _dtype(dtype, target)
    if scheme == "hf" and Path(name).exists():  # a run is resumed from any folder
        name = str(Path(name).resolve())
        target = f"hf:{name}"
    with _seeded(where):
        if scheme == "hf":
            from autokernel.workload.hub import load_hub as load
        else:
            from autokernel.workload.vision import load_timm as load
        model, inputs, label, assumed = load(name, target, example, where, to)
    found = _found_dtype(model, (Case((), dict(inputs)),))
    shapes = ", ".join("×".join(map(str, value.shape)) for value in inputs.values() if isinstance(value, Tensor))
    weights = "random weights" if example.random_weights else "the checkpoint's weights"
    assumptions = (_ASSUMED, f"device {where}", f"dtype {found}, {weights}", f"example inputs {shapes}", *assumed)
    workload = Workload(label, model, (Case((), dict(inputs)),), target, None, assumptions)
    _try_out(workload)
    return workload


def _refuse_for_files(target: str, example: Example | None) -> None:
    """Options that would be ignored are said to be."""
    if example is None:
        return
    given = {
        "--seq": example.chosen_seq,
        "--image": example.image is not None,
        "--workload decode": example.phase != "prefill",
        "--random-weights": example.random_weights,
        "--trust-remote-code": example.trust_remote_code,
    }
    for flag, is_given in given.items():
        if is_given:
            raise UnsupportedTarget(flag=flag, target=target)


def from_objects(model: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None) -> Workload:
    """A workload from a Module (put into eval mode) or a plain function. Raises TargetInvalid, TargetFailed."""
    if not callable(model):
        raise TargetInvalid(target="python", detail=f"a {type(model).__name__} can't be called")
    if isinstance(args, Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        hint = "; a dict is given as kwargs" if isinstance(args, dict) else ""
        detail = f"args must be a Tensor, tuple or list, not a {type(args).__name__}{hint}"
        raise TargetInvalid(target="python", detail=detail)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TargetInvalid(target="python", detail=f"kwargs must be a dict, not a {type(kwargs).__name__}")
    if isinstance(model, nn.Module):
        model.eval()
    label = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "function")
    cases = (Case(args=tuple(args), kwargs=dict(kwargs or {})),)
    workload = Workload(name=label, model=model, cases=cases, target="python", assumptions=(_ASSUMED,))
    _try_out(workload)
    return workload


_ASSUMED = "inference: eval mode, gradients off"


def _split(target: str) -> tuple[Path, str | None]:
    path, name = Path(target), None
    if not path.exists() and ":" in target:
        text, _, name = target.rpartition(":")
        path = Path(text)
    path = path.expanduser()
    if not path.is_file():
        raise TargetNotFound(path=path)
    if path.suffix != ".py":
        raise TargetInvalid(target=target, detail=f"{path.name} is not a Python file")
    if name is not None and not name.isidentifier():
        raise TargetInvalid(target=target, detail=f"{name!r} is not a name")
    return path.resolve(), name


def _import(path: Path, target: str) -> ModuleType:
    """The file as a module of a unique name; its folder is importable while it loads (and after: late imports)."""
    unique = f"_autokernel_target_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise TargetInvalid(target=target, detail="it can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        with user_code(target, "being imported", path):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(unique, None)
        raise
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)  # behind everything else: the file may import a neighbour later
    return module


def _built(module: ModuleType, name: str | None, target: str, where: torch.device) -> tuple[Callable[..., Any], Sets]:
    """Model and inputs, made where they will be used: drawing a billion weights on a CPU takes a minute.

    Code that can't be run with another default device (a generator of the CPU's, say) is run with torch's own.
    """
    if where.type != "cpu":
        try:
            with where:
                return _named(module, name, target) if name else _kernelbench(module, target)
        except (TargetFailed, OutOfMemory):
            torch.manual_seed(SEED)
    return _named(module, name, target) if name else _kernelbench(module, target)


Sets = list[tuple[float, Sequence[Any], dict[str, Any]]]


def _kernelbench(module: ModuleType, target: str) -> tuple[Callable[..., Any], Sets]:
    kind = getattr(module, "Model", None)
    if kind is None:
        raise TargetInvalid(target=target, detail="it defines no `Model`")
    return _class(module, kind, target)


def _class(module: ModuleType, kind: Any, target: str) -> tuple[Callable[..., Any], Sets]:
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise TargetInvalid(target=target, detail=f"{getattr(kind, '__name__', kind)} is not a Module class")
    path = _path(module)
    init = getattr(module, "get_init_inputs", list)
    with user_code(target, "building the model", path):
        model = kind(*_listed(init(), target, "get_init_inputs"))
    return model, _inputs(module, target)


def _inputs(module: ModuleType, target: str) -> Sets:
    make = getattr(module, "get_inputs", None)
    if make is None:
        raise TargetInvalid(target=target, detail="it defines no `get_inputs()`")
    with user_code(target, "making example inputs", _path(module)):
        made = make()
    if isinstance(made, dict):
        return [(1.0, (), made)]
    return [(1.0, _listed(made, target, "get_inputs"), {})]


def _listed(value: Any, target: str, what: str) -> Sequence[Any]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise TargetInvalid(target=target, detail=f"`{what}()` returned a {type(value).__name__}, not a list")
    return value


def _named(module: ModuleType, name: str, target: str) -> tuple[Callable[..., Any], Sets]:
    found = getattr(module, name, None)
    if found is None:
        raise TargetInvalid(target=target, detail=f"it defines no `{name}`")
    if isinstance(found, nn.Module):
        return found, _inputs(module, target)
    if inspect.isclass(found):
        return _class(module, found, target)
    if not callable(found):
        raise TargetInvalid(target=target, detail=f"`{name}` is a {type(found).__name__}")
    with user_code(target, f"calling {name}()", _path(module)):
        made = found()
    return _made(made, target, name)


def _made(made: Any, target: str, name: str) -> tuple[Callable[..., Any], Sets]:
    if isinstance(made, list):
        if not made or not all(isinstance(item, tuple) and len(item) == 2 for item in made):
            raise TargetInvalid(target=target, detail=f"`{name}()` must list (weight, (model, args, kwargs)) pairs")
        parts = [(float(weight), *_triple(triple, target, name)) for weight, triple in made]
        if any(part[1] is not parts[0][1] for part in parts):
            raise TargetInvalid(target=target, detail=f"`{name}()` returned several models; one is needed")
        if any(part[0] <= 0 for part in parts):
            raise TargetInvalid(target=target, detail=f"`{name}()` returned a weight that is not positive")
        return parts[0][1], [(weight, args, kwargs) for weight, _, args, kwargs in parts]
    model, args, kwargs = _triple(made, target, name)
    return model, [(1.0, args, kwargs)]


def _triple(made: Any, target: str, name: str) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise TargetInvalid(target=target, detail=f"`{name}()` must return (model, args, kwargs)")
    args = made[1] if isinstance(made[1], (list, tuple)) else (made[1],)
    kwargs = made[2] if len(made) == 3 else {}
    if not isinstance(kwargs, dict):
        raise TargetInvalid(target=target, detail=f"`{name}()` returned kwargs that are no dict")
    return made[0], args, kwargs


def _path(module: ModuleType) -> Path:
    return Path(str(module.__file__))


# --- placing and trying -----------------------------------------------------------------------------------------------


def _device(device: str) -> str:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceUnavailable(device=device, detail="this torch sees no CUDA device.")
    if device.split(":", maxsplit=1)[0] not in ("cpu", "cuda"):
        raise DeviceUnavailable(device=device, detail="only cpu and cuda are known.")
    if device.startswith("cuda"):
        number = device.partition(":")[2] or "0"
        if not number.isdecimal() or int(number) >= torch.cuda.device_count():
            detail = f"there are {torch.cuda.device_count()} CUDA devices, counted from 0."
            raise DeviceUnavailable(device=device, detail=detail)
    return device


def best_device() -> str:
    """ "cuda:0" where torch sees a GPU, else "cpu"."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def device_of(model: Any, cases: Sequence[Case]) -> str:
    """Where the first tensor of a model, or of its inputs, is: "cpu", "cuda:1"."""
    parameters = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    for tensor in (*parameters, *(value for case in cases for value in _tensors(case))):
        return str(tensor.device)
    return "cpu"


def _placed(workload: Workload, device: torch.device, dtype: str | None, batch: int | None) -> Workload:
    """Model and inputs on the device and in the dtype; the assumptions say what was chosen."""
    to = _dtype(dtype, workload.target)
    model = workload.model
    with user_code(workload.target, "moving the model to its device", workload.path):
        if isinstance(model, nn.Module):
            model = model.to(device=device, dtype=to).eval() if to is not None else model.to(device).eval()
        cases = tuple(
            Case(_map(case.args, device, to, batch), _map(case.kwargs, device, to, batch), case.weight)
            for case in workload.cases
        )
    assumptions = [_ASSUMED, f"device {device}", f"dtype {dtype or _found_dtype(model, cases)}"]
    shapes = ", ".join("×".join(map(str, value.shape)) or "scalar" for value in _tensors(cases[0]))
    assumptions.append(f"example inputs {shapes or 'none'}" + (f" and {len(cases) - 1} more sets" if cases[1:] else ""))
    return Workload(workload.name, model, cases, workload.target, workload.path, tuple(assumptions))


def _dtype(dtype: str | None, target: str) -> torch.dtype | None:
    if dtype is not None and dtype not in _DTYPES:
        raise TargetInvalid(target=target, detail=f"dtype {dtype} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype] if dtype is not None else None


def _map(value: Any, device: torch.device, dtype: torch.dtype | None, batch: int | None) -> Any:
    if isinstance(value, Tensor):
        floating = value.dtype.is_floating_point
        value = value.to(device=device, dtype=dtype if dtype is not None and floating else value.dtype)
        if batch is not None and value.dim() > 0:
            value = torch.cat([value] * -(-batch // value.shape[0]))[:batch].contiguous()
        return value
    if isinstance(value, dict):
        return {key: _map(item, device, dtype, batch) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_map(item, device, dtype, batch) for item in value)
    return value


def _found_dtype(model: Any, cases: tuple[Case, ...]) -> str:
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    for value in (*parameters, *_tensors(cases[0])):
        if value.dtype.is_floating_point:
            return str(value.dtype).removeprefix("torch.")
    return "as given"


def _tensors(case: Case) -> list[Tensor]:
    return [value for value in (*case.args, *case.kwargs.values()) if isinstance(value, Tensor)]


def _try_out(workload: Workload) -> None:
    """One call of each case in plain PyTorch: inputs that don't fit are the user's to see now, not in a trace."""
    for case in workload.cases:
        doing = "running the model on its example inputs"
        with _keeping_buffers(workload.model), user_code(workload.target, doing, workload.path), torch.no_grad():
            workload.model(*_copies(case.args), **_copies(case.kwargs))


@contextlib.contextmanager
def _keeping_buffers(model: Any) -> Iterator[None]:
    """Counters and caches of the user's model are not ours to move."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    first = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, first, strict=True):
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _copies(value: Any) -> Any:
    """The model may write into its inputs; the example inputs stay as they were."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict) and type(value) is dict:
        return {key: _copies(item) for key, item in value.items()}
    return type(value)(_copies(item) for item in value) if type(value) in (list, tuple) else value


@contextlib.contextmanager
def _seeded(where: torch.device) -> Iterator[None]:
    """The same random weights and inputs in every process; the caller's random state comes back."""
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield
