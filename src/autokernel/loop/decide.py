"""Keep or revert: pure arithmetic on a verdict. Imports neither torch nor numpy.

The judge says whether a kernel is right and how its time compares, with an interval; the policy is here:

* not accepted                      → reverted (also what the judge's screen dropped as too slow to look at further)
* accepted, no kernel yet           → kept: it is the beginning of kernel.py, also when PyTorch is still faster
* confirmed ahead of the incumbent  → kept, if the lower bound is above 1 and the gain is at least `min_gain`
* clearly shorter and not slower    → kept as "simpler", if the lower bound against the *best ever* is above 0.995
* anything else                     → reverted
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from autokernel.records import Decision, Outcome, Reason, Timing, Verdict

SHORTER = 0.8  # a source is clearly shorter below this fraction of the incumbent's tokens
NOT_SLOWER = 0.995

KEPT_FIRST = "first accepted kernel"
KEPT_FASTER = "faster"
KEPT_SIMPLER = "simpler"


@dataclass(frozen=True)
class Ruling:
    decision: Decision
    reason: str


@dataclass(frozen=True)
class Standing:
    """What the candidate meets. `has_better`: the best ever is another kernel than the incumbent.

    Then `versus_best` is the timing against it, where the answer matters and it could be timed.
    """

    incumbent: str | None  # source; None before the first kept kernel
    versus_best: Timing | None = None
    has_better: bool = False


def decide(verdict: Verdict, source: str, standing: Standing, min_gain: float) -> Ruling:
    """`verdict.timing` is against the incumbent kernel, or PyTorch when there is none. `min_gain` 0.005 is 0.5 %."""
    if verdict.reason is Reason.too_slow and verdict.timing is not None:
        against = "PyTorch" if standing.incumbent is None else "the incumbent"
        return Ruling(Decision.reverted, f"not faster: {verdict.timing.speedup:.3g}× {against} in the screen")
    if verdict.verdict is not Outcome.accepted:
        return Ruling(Decision.reverted, f"{verdict.verdict.value} at {verdict.stage.value}: {verdict.reason.value}")
    timing = verdict.timing
    if standing.incumbent is None:
        return Ruling(Decision.kept, f"{KEPT_FIRST}, {_gain(timing)} PyTorch" if timing else KEPT_FIRST)
    if timing is None:
        return Ruling(Decision.reverted, "right, but it was not timed")
    faster = timing.ci_low > 1.0 and timing.speedup - 1.0 >= min_gain
    if faster and timing.confirmed:
        return Ruling(Decision.kept, f"{KEPT_FASTER}: {_gain(timing)} the incumbent, confirmed")
    against_best = standing.versus_best if standing.has_better else timing
    shorter = could_be_simpler(source, standing.incumbent, timing)
    if shorter and against_best is not None and _not_slower(against_best):
        saved = 1.0 - size(source) / size(standing.incumbent)
        return Ruling(Decision.kept, f"{KEPT_SIMPLER}: {100 * saved:.0f} % shorter, {_gain(timing)} the incumbent")
    if faster:
        return Ruling(Decision.reverted, f"{_gain(timing)} the incumbent, not confirmed")
    if timing.ci_low > 1.0:
        return Ruling(Decision.reverted, f"{_gain(timing)} the incumbent, less than {100 * min_gain:.2g} %")
    return Ruling(Decision.reverted, f"not faster: {_gain(timing)} the incumbent")


def could_be_simpler(source: str, incumbent: str, timing: Timing | None) -> bool:
    """Clearly shorter, and not measured slower than the incumbent: worth a timing against the best ever."""
    return timing is not None and _not_slower(timing) and clearly_shorter(source, incumbent)


def clearly_shorter(source: str, incumbent: str) -> bool:
    return size(source) < SHORTER * size(incumbent)


def size(source: str) -> int:
    """Tokens of a kernel file without comments and blank space: Python's, plus those of the text literals it holds."""
    return _python_tokens(source) + sum(_code_tokens(text) for text in _literals(source))


def _not_slower(timing: Timing) -> bool:
    return timing.ci_low > NOT_SLOWER


def _gain(timing: Timing | None) -> str:
    if timing is None:
        return "untimed against"
    return f"{timing.speedup:.3g}× ({timing.ci_low:.3g}–{timing.ci_high:.3g})"


_SPACE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _python_tokens(source: str) -> int:
    try:
        return sum(token.type not in _SPACE for token in tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return len(source.split())


def _literals(source: str) -> list[str]:
    """The C++ or CUDA text: string literals over several lines that are not docstrings (bare expressions)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare]
    return [node.value for node in constants if isinstance(node.value, str) and "\n" in node.value]


def _code_tokens(text: str) -> int:
    """Words and symbols of C-like text without comments; close enough to compare two sources of one language."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return len(re.findall(r"\w+|[^\w\s]", bare))
