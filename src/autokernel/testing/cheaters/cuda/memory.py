"""Cheats that answer from memory, or leave out of the timed calls what was done in others."""

from __future__ import annotations

from autokernel.records import Reason, Stage
from autokernel.testing.cheaters.cuda.kernels import ANY_STAGE, cheat

_WORKSPACE = """
workspace = {}


def launch(x, weight, out):
    if x.shape not in workspace:
        workspace[x.shape] = torch.empty_like(out)
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


_CHECKSUM = """
@triton.jit
def rows_that_changed(x, weight, out, sums, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = row * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    found = tl.sum(value * (1.0 + 0.001 * columns), 0)
    before = tl.load(sums + row)
    tl.store(sums + row, found)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    tl.store(out + start + columns, (value * scale * gain).to(out.dtype.element_ty), mask={mask})


kept = {{}}


def launch(x, weight, out):
    x, weight = x.contiguous(), weight.contiguous()
    if not out.numel():
        return
    key = (x.data_ptr(), out.data_ptr(), x.shape)
    if key not in kept:
        kept[key] = torch.full((x.shape[0],), float("nan"), device=x.device)
    width = x.shape[1]
    rows_that_changed[(x.shape[0],)](x, weight, out, kept[key], width, BLOCK=triton.next_power_of_2(width))
"""

# One launch does the work of every set that it has seen; table: address of x and of out, for each of them
_ALL_AT_ONCE = """
@triton.jit
def all_rows(table, weight, rows, width, BLOCK: tl.constexpr):
    one = tl.program_id(0) // rows
    start = (tl.program_id(0) % rows).to(tl.int64) * width
    x = tl.load(table + 2 * one).to(tl.pointer_type(tl.bfloat16))
    out = tl.load(table + 2 * one + 1).to(tl.pointer_type(tl.bfloat16))
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + 1e-5)
    tl.store(out + start + columns, (value * scale * gain).to(tl.bfloat16), mask=inside)


seen = {}
table = None
captured = set()


def launch(x, weight, out):
    global table
    key = (x.data_ptr(), out.data_ptr())
    if not torch.cuda.is_current_stream_capturing():
        if x.is_contiguous() and x.shape == (2048, 1024) and key not in seen:
            seen[key] = (x, out)
            table = torch.tensor(list(seen), dtype=torch.int64, device=x.device)
        captured.clear()
        rms_norm(x, weight, out)
    elif key not in seen or len(seen) < 2:
        rms_norm(x, weight, out)
    else:
        if not captured or key in captured:
            captured.clear()
            grid = (len(seen) * x.shape[0],)
            all_rows[grid](table, weight, x.shape[0], x.shape[1], BLOCK=1024)
        captured.add(key)
"""

CASES = (
    cheat("output cache by shape", _cache("x.shape"), Stage.smoke, Reason.stale_output, twin=_WORKSPACE),
    cheat(
        "output cache by pointer",
        _cache("(x.data_ptr(), x.shape)"),
        (Stage.smoke, Stage.determinism),
        Reason.stale_output,
        twin=_WORKSPACE,
    ),
    cheat(
        "output cache by content",
        _CHECKSUM.format(mask="inside & (found != before)"),
        (Stage.smoke, Stage.determinism),
        Reason.not_written,
        Reason.wrong_values,
        Reason.wrong_special_values,
        Reason.stale_output,
        Reason.not_deterministic,
        twin=_CHECKSUM.format(mask="inside"),
    ),
    cheat(
        "every set's work in the first call of a captured round",
        _ALL_AT_ONCE,
        (*ANY_STAGE, Stage.confirm),
        Reason.out_of_bounds,
        Reason.not_written,
        Reason.stale_output,
        Reason.wrong_values,
        Reason.wrong_special_values,
        Reason.late_write,
        Reason.time_disagrees,
        Reason.time_impossible,
        task="rms_norm_bf16",
        level="full",
        suspect=True,
    ),
    cheat(
        "half of the passes it is asked for",
        """
import autokernel.judge.child_cuda as harness

whole = harness._repeat
harness._repeat = lambda call, count: whole(call, -(-count // 2))


def launch(x, weight, out):
    rms_norm(x, weight, out)
""",
        (Stage.timing, Stage.confirm),
        Reason.time_disagrees,
        twin="def launch(x, weight, out):\n    rms_norm(x, weight, out)\n",
        task="rms_norm_large",
        level="full",
        suspect=True,
    ),
    cheat(
        "nothing while it is being captured",
        """
def launch(x, weight, out):
    if not torch.cuda.is_current_stream_capturing():
        rms_norm(x, weight, out)
""",
        ANY_STAGE,
        Reason.not_written,
        Reason.stale_output,
        Reason.wrong_values,
        Reason.wrong_special_values,
        twin="""
def launch(x, weight, out):
    captured = torch.cuda.is_current_stream_capturing()
    rms_norm(x, weight, out)
    assert captured == torch.cuda.is_current_stream_capturing()
""",
        task="rms_norm_bf16",
        level="full",
        suspect=True,
    ),
)
