"""The only reader of the configuration file and of the environment. Imports neither torch nor numpy.

One file, `~/.config/autokernel/config.toml` (XDG_CONFIG_HOME is honoured, AUTOKERNEL_CONFIG names another), holds

    cache_dir = "~/.cache/autokernel"    # AUTOKERNEL_CACHE_DIR   compiled kernels, device ceilings
    cxx = "/usr/bin/g++"                 # AUTOKERNEL_CXX, CXX    the C++ compiler
    isolation = "auto"                   # AUTOKERNEL_ISOLATION   auto | bubblewrap | plain
    threads = 2                          # AUTOKERNEL_THREADS     threads a kernel may use

The environment wins over the file. An unknown key or an unusable value is an error, never a silent default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from autokernel.errors import BadSetting

Isolation = Literal["auto", "bubblewrap", "plain"]
_ISOLATIONS = ("auto", "bubblewrap", "plain")
_KEYS = ("cache_dir", "cxx", "isolation", "threads")


@dataclass(frozen=True)
class Settings:
    cache_dir: Path
    cxx: str | None  # a path or a command; None: look for one
    isolation: Isolation
    threads: int | None  # None: what torch uses


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the file, then the environment (`environ`: os.environ). Raises BadSetting."""
    env = os.environ if environ is None else environ
    found: dict[str, tuple[object, str]] = {
        key: (value, f"{key} in {config_file(env)}") for key, value in _read(config_file(env)).items()
    }
    if env.get("CXX"):
        found["cxx"] = (env["CXX"], "CXX")
    for key in _KEYS:
        name = f"AUTOKERNEL_{key.upper()}"
        if env.get(name):
            found[key] = (env[name], name)
    return Settings(
        cache_dir=_directory(*found["cache_dir"]) if "cache_dir" in found else _default_cache(env),
        cxx=_text(*found["cxx"]) if "cxx" in found else None,
        isolation=_isolation(*found["isolation"]) if "isolation" in found else "auto",
        threads=_threads(*found["threads"]) if "threads" in found else None,
    )


def cache_dir() -> Path:
    """Where compiled kernels and device ceilings are kept; made if missing. Raises BadSetting if that can't be."""
    path = load().cache_dir
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(
            name="cache_dir",
            value=path,
            detail=f"the folder can't be made ({error.strerror})",
            instead="Set AUTOKERNEL_CACHE_DIR to a folder you can write to.",
        ) from error
    return path


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    if env.get("AUTOKERNEL_CONFIG"):
        return Path(env["AUTOKERNEL_CONFIG"]).expanduser()
    base = env.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "autokernel" / "config.toml"


def _default_cache(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "autokernel"


def _read(path: Path) -> dict[str, object]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise BadSetting(
            name="configuration file", value=path, detail=str(error), instead="Correct the file, or delete it."
        ) from error
    for key in data:
        if key not in _KEYS:
            raise BadSetting(
                name=key,
                value=data[key],
                detail=f"{path} has a key that is not known",
                instead=f"Known keys: {', '.join(_KEYS)}.",
            )
    return data


def _directory(value: object, name: str) -> Path:
    path = Path(_text(value, name)).expanduser()
    if not path.is_absolute():
        raise BadSetting(name=name, value=value, detail="the path is relative", instead="Give an absolute path.")
    return path


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadSetting(name=name, value=value, detail="a text is expected", instead="Put it in quotes.")
    return value


def _isolation(value: object, name: str) -> Isolation:
    if value not in _ISOLATIONS:
        raise BadSetting(
            name=name, value=value, detail="no such isolation", instead=f"Use one of: {', '.join(_ISOLATIONS)}."
        )
    return cast(Isolation, value)


def _threads(value: object, name: str) -> int:
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else 0
    except ValueError:
        number = 0
    if number < 1:
        raise BadSetting(
            name=name, value=value, detail="a whole number of at least 1 is expected", instead="For example: 2."
        )
    return number
