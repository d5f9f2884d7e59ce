"""What copying an environment means."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn, Self


class Forkable:
    """Copies deeply by `fork()`, and refuses every copy that would share or lose its workspace."""

    @abstractmethod
    def fork(self) -> Self:
        """Return another environment in the same state; from here on each goes its own way."""

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def __copy__(self) -> NoReturn:
        raise TypeError("a shallow copy would share the workspace; use fork(), or copy.deepcopy()")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an environment stays in its process; make() it again in the other one")


def check_kind(snapshot: Any, kind: type) -> None:
    """Raise a `TypeError` unless a snapshot is of that kind."""
    if not isinstance(snapshot, kind):
        raise TypeError(
            f"restore() wants a {kind.__name__}, not {snapshot!r:.60}; give it what snapshot() of "
            "an environment with the same wrappers returned"
        )
