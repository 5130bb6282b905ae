"""The summary as data, for programs: the same figures that the terminal shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autokernel.records import SCHEMA, Profile
from autokernel.report.advice import advise
from autokernel.report.usefile import use_lines
from autokernel.report.view import RunView, model_gain, standings


def run_facts(view: RunView) -> dict[str, Any]:
    """JSON-ready. `result` is null until the run is verified; `estimated_gain` is Amdahl's estimate, not measured."""
    lines = standings(view)
    gains = {line.task: line.gain.speedup for line in lines if line.gain}
    return {
        "schema": SCHEMA,
        "path": str(view.path) if view.path else None,
        "config": view.config.model_dump(mode="json", by_alias=True) if view.config else None,
        "in_use_by": view.owner,
        "experiments": len(view.trials),
        "tasks": [asdict(line) for line in lines],
        "estimated_gain": model_gain(view.profile, gains) if gains else None,
        "result": view.proof.result if view.proof else None,
        "proof": view.proof.model_dump(mode="json", by_alias=True) if view.proof else None,
        "use": list(use_lines(view.path)) if view.path else None,
    }


def profile_facts(profile: Profile) -> dict[str, Any]:
    """JSON-ready: the profile's own fields, and what to do about it."""
    return {
        **profile.model_dump(mode="json", by_alias=True),
        "advice": [asdict(advice) for advice in advise(profile)],
    }
