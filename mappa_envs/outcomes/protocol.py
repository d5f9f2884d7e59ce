"""What every rule for a task's own verdict does."""

from __future__ import annotations

from typing import Protocol

from mappa_envs.types import Outcome, Task


class OutcomeScorer(Protocol):
    """The task's own rule."""

    def score(self, task: Task, text: str) -> Outcome:
        """Judge the team's last message."""
        ...

    def close(self) -> None:
        """Release what the scorer holds; a second call does nothing."""
        ...
