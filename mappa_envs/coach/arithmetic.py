"""Reads plain arithmetic out of prose: the numbers in a text and the equations it states.

Only what can be decided exactly is decided: integers, decimals, + - * / and brackets, computed
with fractions. Powers are left out, so no text can make the evaluation expensive.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fractions import Fraction

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d)")
_ARITHMETIC_RUN = re.compile(r"[-+*/()=.,\d\s]{3,200}")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TIMES = re.compile(r"\\(?:times|cdot)|(?<=[\d)\s])x(?=[\s(\d])")
_OPERATOR = re.compile(r"[\d)]\s*[-+*/]\s*[-(\d]")


@dataclass(frozen=True, slots=True)
class Equation:
    """A stated equation, e.g. `Equation("35 + 29 = 54", holds=False)`."""

    text: str
    holds: bool


def numbers(text: str) -> list[Fraction]:
    """Return the numbers of a text in order, e.g. 3 and 1/2 for `"3 of 0.5"`."""
    return [Fraction(match.replace(",", "")) for match in NUMBER.findall(text)]


def single_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, or None if it is anything else."""
    stripped = text.strip().strip("$").strip()
    return numbers(stripped)[0] if NUMBER.fullmatch(stripped) else None


def equations(text: str) -> list[Equation]:
    """Return the equations between arithmetic expressions that a text states.

    A chain `a = b = c` is one equation. Something must be computed: `5 = 5` is none.
    """
    plain = _TIMES.sub("*", text.translate(_SIGNS))
    found = (_equation(run) for line in plain.splitlines() for run in _ARITHMETIC_RUN.findall(line))
    return [equation for equation in found if equation is not None]


def _equation(run: str) -> Equation | None:
    if "=" not in run or not _OPERATOR.search(run):
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
