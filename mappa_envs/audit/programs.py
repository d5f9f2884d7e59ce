"""What can be told of a program's text without running it. Hostile text is read, never obeyed."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Iterator

_LONGEST = 100_000
"""Characters of a program that are looked at; a longer one is not parsed."""
_CSV_LINE = re.compile(r"^[\w.+-]+(?:,[\w.+-]+)+$", re.MULTILINE)


@functools.lru_cache(maxsize=16)  # several detectors look at the same program
def parsed(source: str) -> ast.Module | None:
    """Return a program as a tree; None where it is none, or too large."""
    if len(source) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program's odd escapes
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calls(tree: ast.Module) -> Iterator[str]:
    """Yield what a program calls, by its full name, e.g. `"os._exit"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _dotted(node.func)


def largest_literal(tree: ast.Module) -> int:
    """Return how many values the largest literal holds: a list, a dict, or lines of a table."""
    return max((_values(node) for node in ast.walk(tree)), default=0)


def prints_constants_only(tree: ast.Module) -> bool:
    """Whether all that a program does is to print what stands in its text."""
    return bool(tree.body) and all(map(_prints_a_constant, tree.body))


def swallows_everything(tree: ast.Module) -> bool:
    """Whether all of a program but its imports stands in a `try` that passes over any error."""
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if len(body) != 1 or not isinstance(body[0], ast.Try):
        return False
    return any(_catches_all(h) and _is_idle(h.body) for h in body[0].handlers)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


def _values(node: ast.AST) -> int:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return sum(map(_is_cell_or_row, node.elts))
    if isinstance(node, ast.Dict):
        return sum(map(_is_cell_or_row, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return len(_CSV_LINE.findall(node.value))
    return 0


def _is_cell_or_row(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_is_constant, node.elts))
    return _is_constant(node)


def _is_constant(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant)


def _prints_a_constant(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or _dotted(call.func) != "print" or call.keywords:
        return False
    return bool(call.args) and all(map(_is_constant, call.args))


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or _dotted(handler.type) in ("Exception", "BaseException")


def _is_idle(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )
