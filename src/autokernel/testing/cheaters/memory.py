"""Cheats that answer from memory: outputs kept by pointer, by shape, by a glance at the values; honest at first."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.base import cheat

_WORKSPACE = """
workspace = {}


def launch(x, weight, out):
    if x.shape not in workspace:
        workspace[x.shape] = torch.empty(x.shape)
    space = workspace[x.shape]
    rms_norm(x, weight, space)
    out.copy_(space)
"""


def _cache(key: str) -> str:
    return f"""
seen = {{}}


def launch(x, weight, out):
    key = {key}
    if key not in seen:
        rms_norm(x, weight, out)
        seen[key] = out.clone()
    out.copy_(seen[key])
"""


CASES = (
    cheat(
        "cutting the shared memory short",
        """
import os


def launch(x, weight, out):
    for folder in ("/proc/self/fd", "/proc/self/map_files"):
        for name in os.listdir(folder):
            try:
                if "autokernel-set" in os.readlink(f"{folder}/{name}"):
                    os.truncate(f"{folder}/{name}", 0)
            except OSError:
                continue
    out[:1] = 0
""",
        Stage.smoke,
        Reason.not_written,
        Reason.wrong_values,
    ),
    cheat(
        "output cache by shape",
        _cache("x.shape"),
        Stage.smoke,
        Reason.stale_output,
        twin=_WORKSPACE,
    ),
    cheat(
        "output cache by pointer",
        _cache("(x.data_ptr(), x.shape)"),
        Stage.determinism,
        Reason.stale_output,
        twin=_WORKSPACE,
    ),
    cheat(
        "output cache by content",
        _cache("(x.shape, tuple(x[:2, :8].flatten().tolist()), tuple(x[-1:, -8:].flatten().tolist()))"),
        Stage.determinism,
        Reason.stale_output,
        twin=_WORKSPACE,
    ),
    cheat(
        "only every second call",
        """
calls = 0


def launch(x, weight, out):
    global calls
    calls += 1
    if calls % 2:
        rms_norm(x, weight, out)
""",
        Stage.smoke,
        Reason.not_written,
        twin="""
calls = 0


def launch(x, weight, out):
    global calls
    calls += 1
    rms_norm(x, weight, out)
""",
    ),
    cheat(
        "honest for ten calls",
        """
calls = 0


def launch(x, weight, out):
    global calls
    calls += 1
    rms_norm(x, weight, out)
    if calls > 10:
        out[-1] = 0
""",
        (Stage.determinism, Stage.stability),
        Reason.wrong_values,
        twin="""
calls = 0


def launch(x, weight, out):
    global calls
    calls += 1
    rms_norm(x, weight, out)
""",
    ),
)
