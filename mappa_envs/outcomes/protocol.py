"""What every rule for a task's own verdict does."""

from __future__ import annotations

from typing import Protocol

from mappa_envs.sandbox.protocol import FileRecord
from mappa_envs.types import Outcome, Task


class Workspace(Protocol):
    """The team's files, for a rule to look at."""

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files, sorted by path."""
        ...

    @property
    def folders(self) -> frozenset[str]:
        """The folders, by path."""
        ...

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: `name` is no regular file, or is over `max_bytes`.
            SandboxError: the sandbox is dead.
        """
        ...


class OutcomeScorer(Protocol):
    """The task's own rule."""

    def score(self, task: Task, text: str, workspace: Workspace) -> Outcome:
        """Judge what the team delivers: its last message, or files of its workspace.

        Raises:
            SandboxError: the sandbox is dead.
        """
        ...

    def close(self) -> None:
        """Release what the scorer holds; a second call does nothing."""
        ...
