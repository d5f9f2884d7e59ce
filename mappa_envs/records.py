"""Turns and episodes as plain data for other programs, and as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mappa_envs.types import Outcome, Task, Turn


def turn_record(turn: Turn) -> dict[str, Any]:
    """Return what came of a turn as JSON-ready data; the messages and the action are left out.

    A player has those from its own loop; this is what it cannot know otherwise.
    """
    return {
        "step": turn.step,
        "index": turn.index,
        "handed_off": turn.handed_off,
        "feedback": turn.feedback,
        "tool_results": [
            {
                "tool": result.call.tool,
                "source": result.call.source,
                "output": result.output,
                "exit_code": result.exit_code,
                "timed_out": result.timed_out,
                "files": asdict(result.files),
            }
            for result in turn.tool_results
        ],
    }


def render_transcript(task: Task, turns: Sequence[Turn], outcome: Outcome | None) -> str:
    """Return an episode as a readable conversation."""
    lines = [f"task {task.id}: {task.prompt}"]
    for turn in turns:
        lines += ["", f"--- {turn.agent}, action {turn.index + 1}", turn.action]
        lines += [f"[output]\n{result.output}" for result in turn.tool_results]
    if outcome is not None:
        lines += ["", f"=== outcome {outcome.score:g} ({outcome.verdict}): {outcome.reason}"]
    return "\n".join(lines)
