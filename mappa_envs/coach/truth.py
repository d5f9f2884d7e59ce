"""What a coach is told of the right answer, where it is told at all."""

from __future__ import annotations

from mappa_envs.coach.evidence import outcome_line
from mappa_envs.types import Outcome, Task


def truth_text(task: Task, outcome: Outcome | None) -> str:
    """Return the right answer of a task in words, with the verdict once there is one.

    The answers to tables are never part of it: of a submission the verdict alone is told.
    """
    lines = []
    if task.answers:
        lines.append(f"accepted answers: {', '.join(task.answers)}")
    if outcome is not None:
        lines.append(outcome_line(outcome))
    return "\n".join(lines) or "not known yet: the outcome is judged when the episode ends"
