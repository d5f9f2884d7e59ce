"""What a check of the rubric coach finds, and how its reasons are worded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mappa_envs.types import ToolResult


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found, e.g. `Verdict(True, "the program ended with exit status 0")`."""

    passed: bool | None
    """None when there is nothing to check, which neither gives nor costs points."""
    reason: str


Check = Callable[..., Verdict]


def failure(result: ToolResult) -> str:
    """Return why a program did not run to its end."""
    if result.call.error is not None:
        return f"could not be read: {result.call.error}"
    if result.timed_out:
        return "was stopped at its time limit"
    lines = result.output.strip().splitlines()
    return f"failed: {short(lines[-1])}" if lines else "failed, and printed nothing"


def short(text: str, limit: int = 60) -> str:
    """Return the beginning of a text, quoted, on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= limit else line[: limit - 1] + "…")
