"""Reads plain arithmetic out of prose: the numbers in a text and the equations it states.

Only what can be decided exactly is decided: integers, decimals, + - * / and brackets, computed
with fractions. Powers are left out, so no text can make the evaluation expensive.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d)")
_MAX_DIGITS = 1000
_MAX_EQUATION = 200
_ARITHMETIC_RUN = re.compile(r"[-+*/()=.,\d\s]{3,}")
_PART_OF_FORMULA = re.compile(r"[\w^]")
_GOES_ON = re.compile(r"\s*(?:[+*/]|-\s)")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TIMES = re.compile(r"\\(?:times|cdot)|(?<=[\d)])(\s*)x(?=\s*[\d(])")
_OPERATOR = re.compile(r"[\d)]\s*[-+*/]\s*[-(\d]")


@dataclass(frozen=True, slots=True)
class Equation:
    """A stated equation, e.g. `Equation("35 + 29 = 54", holds=False)`."""

    text: str
    holds: bool


def numbers(text: str) -> list[Fraction]:
    """Return the numbers of a text in order, e.g. 3 and 1/2 for `"3 of 0.5"`.

    Digits by the thousand are no number that anyone computes with; they are left out.
    """
    found = NUMBER.findall(text)
    return [Fraction(match.replace(",", "")) for match in found if len(match) <= _MAX_DIGITS]


def single_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, or None if it is anything else."""
    stripped = text.strip().strip("$").strip()
    found = numbers(stripped)
    return found[0] if found and NUMBER.fullmatch(stripped) else None


def equations(text: str) -> list[Equation]:
    """Return the equations between arithmetic expressions that a text states.

    A chain `a = b = c` is one equation. Something must be computed: `5 = 5` is none. Neither is
    what belongs to a formula that is no plain arithmetic, such as `3 + 1 = 9` in `2^3 + 1 = 9`.
    """
    plain = _TIMES.sub(r"\1*", text.translate(_SIGNS))
    found = (_equation(run) for line in plain.splitlines() for run in _runs(line))
    return [equation for equation in found if equation is not None]


def _runs(line: str) -> Iterator[str]:
    """Yield the stretches of plain arithmetic that are not a part of a longer formula."""
    for match in _ARITHMETIC_RUN.finditer(line):
        run, start, end = match[0], match.start(), match.end()
        before, after = line[start - 1 : start], line[end : end + 1]
        cut_before = before and not run[0].isspace() and _PART_OF_FORMULA.match(before)
        cut_after = after and not run[-1].isspace() and _PART_OF_FORMULA.match(after)
        if not (cut_before or cut_after or (before and _GOES_ON.match(run))):
            yield run.strip()


def _equation(run: str) -> Equation | None:
    if "=" not in run or len(run) > _MAX_EQUATION or not _OPERATOR.search(run):
        return None
    sides = [side.strip(" .,") for side in run.split("=")]
    values = [evaluate(side) for side in sides if any(c.isdigit() for c in side)]
    if len(values) < 2 or None in values:
        return None
    return Equation(" = ".join(filter(None, sides)), holds=len(set(values)) == 1)


def evaluate(expression: str) -> Fraction | None:
    """Return the exact value of an expression, or None if it is no plain arithmetic."""
    try:
        return _value(ast.parse(expression.replace(",", "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("no plain arithmetic")
