"""run.toml: what a run was asked to do, for which model, on which machine, with what."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from autokernel.errors import BrokenFile, NewerSchema, NotARun
from autokernel.records import SCHEMA, Document, Record, RunConfig, Task

NAME = "run.toml"


class Seeds(Record):
    """sha256 of the secret seeds' master, one for each time the run was begun or resumed; the secret is never kept."""

    commitments: tuple[str, ...] = ()


class Manifest(Document):
    config: RunConfig
    model: str  # `model_hash` of the run's tasks
    created_at: str
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, str | int | float | bool] = Field(default_factory=dict)  # device, processor, cores, ...
    seeds: Seeds = Field(default_factory=Seeds)
    user_code: dict[str, str | bool] = Field(
        default_factory=dict
    )  # the git commit of the user's file and whether it had changes

    def toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json", by_alias=True)))


def read(run: Path) -> Manifest:
    """Raises NotARun, NewerSchema, BrokenFile."""
    path = run / NAME
    if not run.is_dir():
        raise NotARun(path=run, detail="there is no such folder")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotARun(path=run, detail="it holds no run.toml") from error
    except (OSError, ValueError) as error:
        raise BrokenFile(path=path, detail=error) from error
    found = data.get("schema")
    if not isinstance(found, int):
        raise NotARun(path=run, detail="its run.toml has no schema")
    if found > SCHEMA:
        raise NewerSchema(path=path, found=found, known=SCHEMA)
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise BrokenFile(path=path, detail=error) from error


def model_hash(tasks: Iterable[Task]) -> str:
    """One hash for the set of regions (and their sizes) that a model is made of."""
    keys = sorted({f"{task.fingerprint} {task.shape_key}" for task in tasks})
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def _without_none(value: Any) -> Any:
    """TOML has no null: an absent key is the default."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
