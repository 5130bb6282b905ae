"""What a change of schedule tries, in words."""

from __future__ import annotations

from dataclasses import fields

from autokernel.generate import Schedule, TritonSchedule

_WORDS: dict[tuple[str, object], str] = {
    ("threads", "one"): "stay on one thread: waking others costs more than they save at this size",
    ("threads", "all"): "share the rows among all threads",
    ("keep", "recompute"): "compute values again in each pass instead of keeping them: less traffic to the row's array",
    ("keep", "buffer"): "keep values that a later pass needs in an array on the stack",
    ("keep", "output"): "keep values that a later pass needs where the output will be, so that its lines are in L1",
    ("divide", "reciprocal"): "multiply by the reciprocal of a row's divisor, since division has a quarter of the rate",
    ("divide", "exact"): "divide, rather than multiply by a reciprocal",
    ("stores", "streaming"): "write past the caches, which saves reading every output line before it is overwritten",
    ("stores", "cached"): "write through the caches, so that the next operator finds the output there",
    ("segments", "together"): "do all pieces of the concatenation in one loop, so that shared operands are read once",
    ("segments", "apart"): "a loop for each piece of the concatenation",
    ("order", "stores"): "loop in the order of the output's memory",
    ("order", "loads"): "loop in the order of the input's memory",
    ("order", "tiles"): "transpose tile by tile, so that the lines of both sides stay in L1",
}


_TRITON: dict[tuple[str, object], str] = {
    ("structure", "whole"): "keep the whole row in registers, so that it is read once",
    ("structure", "split"): "keep the row in two tiles, a power of two each, so that fewer lanes idle",
    ("structure", "loop"): "loop over blocks of the row, once a pass: later passes find it in L2",
    ("structure", "online"): "maximum and sum in one pass, the sum rescaled when the maximum grows",
    ("divide", "exact"): "divide with correct rounding",
    ("divide", "fast"): "divide by the hardware's approximate reciprocal",
    ("divide", "reciprocal"): "multiply by the reciprocal of a row's divisor",
    ("exp", "exact"): "exponentials in plain arithmetic, exact to the last bit but one",
    ("exp", "fast"): "the hardware's exponential",
    ("exp", "folded"): "exponentials as powers of two, the change of base folded into a multiply-add",
    ("evict", "hints"): "tell the caches what is read once and what is read again",
    ("evict", "none"): "no hints to the caches",
    ("order", "stores"): "tiles in the order of the output's memory",
    ("order", "loads"): "tiles in the order of the input's memory",
    ("order", "tiles"): "tiles along which both sides of the transposition are contiguous",
}


def _triton_words(axis: str, value: object) -> str:
    if (axis, value) in _TRITON:
        return _TRITON[axis, value]
    if axis == "persistent":
        many = f"{value} programs a multiprocessor, each going from tile to tile: no tail of a last wave"
        return many if value else "a program for each tile"
    plain = {
        "warps": "{} warps a program",
        "rows": "{} rows a program at a time, for more bytes in flight",
        "block": "tiles of {} columns" if value else "tiles as wide as the row asks for",
        "stages": "loads run {} stages ahead" if value != 1 else "no software pipeline",
    }
    return plain.get(axis, axis + " = {}").format(value)


def _words(axis: str, value: object) -> str:
    if (axis, value) in _WORDS:
        return _WORDS[axis, value]
    if axis == "lanes":
        return (
            f"{value} accumulators side by side, to hide the latency of the reduction"
            if value
            else "one vector of accumulators"
        )
    if axis == "parts":
        return (
            f"{value} independent accumulators, to hide the latency of the reduction"
            if value != 1
            else "one accumulator"
        )
    if axis == "streams":
        return (
            f"write {value} parts of a row side by side, for more loads in flight" if value != 1 else "one stream a row"
        )
    if axis == "rows":
        return f"{value} rows in flight, which share what doesn't vary by row" if value != 1 else "one row at a time"
    if axis == "block":
        return f"work in blocks of {value} elements" if value else "one even share of the elements for each thread"
    if axis == "chunk":
        return f"deal rows out {value} at a time, to even out threads" if value else "deal rows out once, evenly"
    return f"{axis} = {value}"


def hypothesis(schedule: Schedule | TritonSchedule, base: Schedule | TritonSchedule | None) -> str:
    """One line: what is tried, against the best schedule so far; the first guess is described whole."""
    reference = base if base is not None else type(schedule)()
    changed = [f.name for f in fields(schedule) if getattr(schedule, f.name) != getattr(reference, f.name)]
    say = _triton_words if isinstance(schedule, TritonSchedule) else _words
    text = "; ".join(say(axis, getattr(schedule, axis)) for axis in changed)
    if base is None:
        plain = (
            "a program for each tile"
            if isinstance(schedule, TritonSchedule)
            else "plain loops, rows shared among the threads"
        )
        return f"first guess: {text or plain}"
    return text or "the same schedule again"
