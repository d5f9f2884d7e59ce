"""One scorer for all environments of a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from mappa_envs.outcomes.protocol import OutcomeScorer, Workspace
from mappa_envs.types import Outcome, Task


class SharedScorer:
    """Hands out parts in one scorer, which is closed when no part is in use any more.

    Hundreds of environments share what a scorer holds, e.g. a child process, and the one that
    closes first does not take it from the others.
    """

    def __init__(self, make: Callable[[], OutcomeScorer]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._scorer: OutcomeScorer | None = None
        self._in_use: weakref.WeakSet[_Part] = weakref.WeakSet()

    def part(self) -> OutcomeScorer:
        """Return a scorer for one environment."""
        return _Part(self)

    def opened(self, part: _Part) -> OutcomeScorer:
        """Note that a part is in use, and return the one scorer."""
        with self._lock:
            self._in_use.add(part)
            if self._scorer is None:
                self._scorer = self._make()
            return self._scorer

    def closed(self, part: _Part) -> None:
        """Note that a part is not in use, and close the one scorer if it was the last."""
        with self._lock:
            self._in_use.discard(part)
            if self._scorer is not None and not self._in_use:
                self._scorer.close()


class _Part:
    """One environment's part in the scorer."""

    def __init__(self, whole: SharedScorer) -> None:
        self._whole = whole

    def score(self, task: Task, text: str, workspace: Workspace) -> Outcome:
        return self._whole.opened(self).score(task, text, workspace)

    def close(self) -> None:
        self._whole.closed(self)
