"""A sandbox and a coach that do what a test tells them."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.errors import CoachError, SandboxError
from mappa_envs.sandbox.protocol import (
    TASK_AUTHOR,
    Actor,
    ExecResult,
    FileRecord,
    Level,
    Limits,
    Snapshot,
)
from mappa_envs.types import Assessment, Turn


class FakeSandbox:
    r"""A `Sandbox` that runs nothing: each program ends as the next of `results` says.

    A `SandboxError` among the results is raised. The last result repeats; without any, programs
    print nothing. `sources` holds the programs, `actors` for whom they ran, `files` the workspace.

    >>> FakeSandbox(ExecResult.of("5\n")).exec("print(2 + 3)", Limits()).stdout
    '5\n'
    """

    level: Level = "process"

    def __init__(self, *results: ExecResult | SandboxError) -> None:
        self._results = list(results) or [ExecResult.of()]
        self.sources: list[str] = []
        self.actors: list[Actor] = []
        self.files: dict[str, bytes] = {}
        self.closed = False

    def exec(self, source: str, limits: Limits, actor: Actor = Actor()) -> ExecResult:
        """Note the program and its actor, and return, or raise, the next result."""
        self._check_open()
        self.sources.append(source)
        self.actors.append(actor)
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, SandboxError):
            raise result
        return result

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Return what `write_file` was given under that name."""
        self._check_open()
        if name not in self.files:
            raise FileNotFoundError(f"{name!r} is not in the workspace")
        if len(self.files[name]) > max_bytes:
            raise ValueError(f"{name!r} is larger than the {max_bytes} bytes that may be read")
        return self.files[name]

    def write_file(self, name: str, content: bytes) -> None:
        """Keep the content in `files`."""
        self._check_open()
        self.files[name] = content

    def manifest(self) -> tuple[FileRecord, ...]:
        """Return the files, all as the task's own."""
        self._check_open()
        return tuple(
            FileRecord(name, len(content), hashlib.sha256(content).hexdigest(), TASK_AUTHOR, -1)
            for name, content in sorted(self.files.items())
        )

    def snapshot(self) -> Snapshot:
        """Remember the files."""
        self._check_open()
        return Snapshot(self.manifest(), contents=dict(self.files))

    def restore(self, snapshot: Snapshot) -> None:
        """Bring the files back."""
        self._check_open()
        if not isinstance(snapshot.contents, dict):
            raise ValueError("the snapshot is of another kind of sandbox")
        self.files = dict(snapshot.contents)

    def close(self) -> None:
        """Empty the workspace and refuse everything from now on."""
        self.files.clear()
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this sandbox is closed; make a new one")


class ScriptedCoach:
    """A coach that gives `scores` in turn, over and over, whatever the action.

    A `CoachError` among the scores is raised. Scores are passed on unchecked, so that a test can
    see what becomes of 11, NaN or None. `seen` holds what the coach was asked.

    >>> coach = ScriptedCoach(6.0, CoachError("busy"), float("nan"))
    """

    id = "scripted"
    truth_roles: tuple[str, ...] = ()

    def __init__(self, *scores: Any) -> None:
        self._scores = itertools.cycle(scores)
        self.seen: list[tuple[Turn, CoachContext]] = []

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return, or raise, the next score."""
        self.seen.append((turn, context))
        score = next(self._scores)
        if isinstance(score, CoachError):
            raise score
        return Assessment(score, f"scripted {score}")
