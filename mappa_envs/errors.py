"""Every error this package raises, by the boundary that was crossed.

    MappaEnvError
    ├── ScenarioError (ValueError)   a scenario folder or a make() table is wrong
    ├── TaskError (ValueError)       a task file or row is wrong, or a task id is unknown
    ├── ActionError (TypeError, ValueError)   no action that the agent may take now
    ├── SandboxError (RuntimeError)  the sandbox itself is dead or cannot start
    ├── CoachError (RuntimeError)    the coach could not judge a turn
    ├── ReplayError (RuntimeError)   a recorded episode and the one that is played differ
    ├── AuditError (ValueError)      a stored run is damaged, or lacks what is asked of it
    └── CommandError (ValueError)    a command was given something that is not there

What an *agent* does wrong (bad code, a malformed tool call, no answer) is never an error: it is
feedback in the next observation. Messages say what was wrong, where, the value, and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mappa_envs.types import Failure, Spent

_MOST_NAMES = 20
"""How many names a message lists."""


class MappaEnvError(Exception):
    """Base of all errors of this package; a command ends with `exit_code` when it escapes."""

    exit_code = 2


class ScenarioError(MappaEnvError, ValueError):
    """A scenario folder, or a table passed to `make`, does not describe a playable scenario.

    The message is the first problem; `problems` holds them all, one line each.
    """

    def __init__(self, *problems: str) -> None:
        more = len(problems) - 1
        rest = f" (and {more} more; `mappa scenario check` lists them)" if more else ""
        super().__init__(f"{problems[0]}{rest}")
        self.problems = problems


class TaskError(MappaEnvError, ValueError):
    """A task source cannot be read, holds a malformed row, or lacks the task asked for.

    Args:
        message: The whole of it in one line.
        problems: Each part of it by itself, where there are several.
    """

    def __init__(self, message: str, problems: Collection[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


class ActionError(MappaEnvError, TypeError, ValueError):
    """No action that may be taken now: no text, not None at a dead turn, or nobody is to act."""


class SandboxError(MappaEnvError, RuntimeError):
    """The sandbox cannot start or has died; a failing command inside it is a result, not this."""


class CoachError(MappaEnvError, RuntimeError):
    """The coach could not judge a turn; the action stays unscored and no number is made up.

    Args:
        message: Why, for a person to read.
        failure: Why, as the ledger counts it.
        spent: What the attempts cost; None where no model was asked.
    """

    def __init__(
        self, message: str, *, failure: Failure = "unjudged", spent: Spent | None = None
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.spent = spent


class ReplayError(MappaEnvError, RuntimeError):
    """A recorded episode and the one that is played differ; the message says where."""


class AuditError(MappaEnvError, ValueError):
    """A stored run holds no episodes or damaged ones, or lacks what an audit of it needs."""


class CommandError(MappaEnvError, ValueError):
    """An option of a command names a seat, split or file that is not there."""


def did_you_mean(name: object, known: Collection[str], otherwise: str = "known keys") -> str:
    """Return how a message about an unknown name ends: with the closest name, or the names.

    Args:
        name: What was given.
        known: What could have been given.
        otherwise: Introduces the names, the first 20 of them, where none is close.

    >>> did_you_mean("taks", ["name", "tasks"])
    "did you mean 'tasks'?"
    >>> did_you_mean("x", ["name", "tasks"])
    'known keys: name, tasks'
    """
    close = difflib.get_close_matches(str(name), known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = ", ..." if len(known) > _MOST_NAMES else ""
    return f"{otherwise}: {', '.join(list(known)[:_MOST_NAMES])}{more}"
