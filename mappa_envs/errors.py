"""Every error this package raises, by the boundary that was crossed.

    MappaEnvError
    ├── ScenarioError (ValueError)   a scenario folder or a make() table is wrong
    ├── TaskError (ValueError)       a task file or row is wrong, or a task id is unknown
    ├── ActionError (TypeError)      the caller passed something that is no action
    ├── SandboxError (RuntimeError)  the sandbox itself is dead or cannot start
    └── CoachError (RuntimeError)    the coach could not judge a turn

What an *agent* does wrong (bad code, a malformed tool call, no answer) is never an error: it is
feedback in the next observation. Messages say what was wrong, where, the value, and the fix.
"""

from __future__ import annotations


class MappaEnvError(Exception):
    """Base of all errors of this package; a command ends with `exit_code` when it escapes."""

    exit_code = 2


class ScenarioError(MappaEnvError, ValueError):
    """A scenario folder, or a table passed to `make`, does not describe a playable scenario."""


class TaskError(MappaEnvError, ValueError):
    """A task source cannot be read, holds a malformed row, or lacks the task asked for."""


class ActionError(MappaEnvError, TypeError):
    """An action is not a `str` that UTF-8 can encode."""


class SandboxError(MappaEnvError, RuntimeError):
    """The sandbox cannot start or has died; a failing command inside it is a result, not this."""


class CoachError(MappaEnvError, RuntimeError):
    """The coach could not judge a turn; the action stays unscored and no number is made up."""
