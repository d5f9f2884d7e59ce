"""What checks say when something is not as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from mappa_envs.sandbox.protocol import ExecResult


def equal(actual: object, expected: object, what: str) -> None:
    """Compare two values.

    Raises:
        AssertionError: they differ; the message says what was expected of what, of two
            results only the fields that differ.
    """
    if actual == expected:
        return
    if isinstance(actual, ExecResult) and isinstance(expected, ExecResult):
        names = [item.name for item in fields(ExecResult)]
        differ = [name for name in names if getattr(actual, name) != getattr(expected, name)]
        actual, expected = (
            ", ".join(f"{name}={getattr(result, name)!r}" for name in differ)
            for result in (actual, expected)
        )
        raise AssertionError(f"{what}: expected {expected}, got {actual}")
    raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


def refused(
    kinds: type[Exception] | tuple[type[Exception], ...],
    verb: Callable[..., object],
    *arguments: object,
) -> None:
    """Call something that is to raise one of some errors.

    Raises:
        AssertionError: it raised none; the message says what was called and what was expected.
    """
    try:
        result = verb(*arguments)
    except kinds:
        return
    names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
    called = f"{verb.__name__}{arguments!r}"
    raise AssertionError(f"{called}: expected {' or '.join(names)}, got {result!r}")
