r"""The program of the child process that compares mathematics; run by path, never imported.

It reads one JSON line `{"gold": ..., "answer": ...}` at a time and writes one line back: a word of
`REPLIES`. It imports nothing of this package, so it starts fast and holds no tasks.

Comparing is math-verify's, with its numeric comparison replaced: that one rounds to 6 decimals and
takes differences below 1e-15 for none, so that 1/100! "equals" 1/101!.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any, TextIO

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import (  # type: ignore[import-untyped]
    LatexExtractionConfig,
    grader,
    parse,
    verify,
)

REPLIES = ("ready", "equal", "different", "unreadable", "failed")

MEMORY_BYTES = 2 << 30
_DIGITS = (30, 1000)
_READING = LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
    )
)
_DECIMAL = re.compile(r"(\^?)(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_MISREAD = re.compile(r"\d\s*_|\d\s+\.?\d|dots|\.\.|mod(?![a-z])|\\circ|\\approx|\\not|\\sim")
"""Forms the parser takes for something else: a base, numbers side by side, "and so on"."""
_EMPTY = re.compile(r"\\emptyset|\\varnothing|\\\{\s*\\\}")


def compare(gold: str, answer: str) -> str:
    """Compare two tidied LaTeX answers; see `REPLIES`."""
    try:
        sides = [_read(gold), _read(answer)]
        if any(side is None for side in sides):
            return "unreadable"
        same = verify(
            *sides, timeout_seconds=None, allow_set_relation_comp=True, raise_on_error=True
        )
        return "equal" if same else "different"
    except Exception:
        return "failed"


def same_value(a: Any, b: Any, *_: Any) -> bool:
    """Compare two sympy values exactly where both are rational, else to 1000 digits.

    Stands in for math-verify's `sympy_numeric_eq`, whose tolerances are absolute.
    """
    if isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase):
        return a.shape == b.shape and all(map(same_value, a.flat(), b.flat()))
    return any(_same_number(x, y) for x, y in _percent_readings(a, b))


def _same_number(a: Any, b: Any) -> bool:
    a, b = a.doit(), b.doit()
    if a.is_Rational and b.is_Rational:
        return bool(a == b)
    if a.free_symbols or b.free_symbols:
        return False
    for digits in _DIGITS:
        x, y = a.evalf(digits), b.evalf(digits)
        if abs(x - y) > max(abs(x), abs(y)) * sympy.Float(10, digits) ** (5 - digits):
            return False
    return (a - b).is_zero is not False


def _percent_readings(a: Any, b: Any) -> list[tuple[Any, Any]]:
    r"""Read `50\%` against a plain number as 50 too, not only as 50/100."""
    x, y = grader.get_pct_val(a), grader.get_pct_val(b)
    if (x is None) == (y is None):
        return [(a, b)]
    return [(a, b), (a if x is None else x, b if y is None else y)]


def _read(latex: str) -> Any:
    """Parse one side; None where it is no mathematics or would be misread."""
    if _MISREAD.search(latex):
        return None
    exact = _DECIMAL.sub(_as_fraction, latex)
    found = parse(
        rf"\boxed{{{exact}}}", [_READING], fallback_mode="no_fallback", parsing_timeout=None
    )
    if not found or not isinstance(found[0], sympy.Basic | sympy.MatrixBase):
        return None
    impossible = found[0].has(sympy.EmptySet, sympy.nan, sympy.zoo) and not _EMPTY.search(latex)
    return None if impossible or found[0].atoms(sympy.Float) else found[0]


def _as_fraction(match: re.Match[str]) -> str:
    power, whole, decimals = match.groups()
    fraction = rf"\frac{{{int(whole + decimals)}}}{{{10 ** len(decimals)}}}"
    return f"^{{{fraction}}}" if power else fraction


def _limit_process() -> None:
    """Bound memory, and let an alarm end this process even where its parent is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _serve(replies: TextIO, alarm_s: float) -> None:
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        reply = compare(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(reply, file=replies, flush=True)


def main() -> None:
    """Serve until the input ends; the one argument is the alarm in seconds."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    logging.disable(logging.CRITICAL)
    _limit_process()
    grader.sympy_numeric_eq = same_value
    _serve(replies, float(sys.argv[1]))


if __name__ == "__main__":
    main()
