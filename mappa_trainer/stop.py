"""Stopping cleanly: the first Ctrl-C asks, the second insists."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Protocol


class Stopped(Exception):
    """Raised at a safe point after Ctrl-C."""


class Listener(Protocol):
    """Where the request is acknowledged."""

    def say(self, text: str) -> None:
        """Show a line."""
        ...


class StopSignal:
    """While active, Ctrl-C is remembered and raised as `Stopped` by the next `check`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._asked = False
        self._previous: Any = None

    def check(self) -> None:
        """Stop here if stopping was asked for.

        Raises:
            Stopped: Ctrl-C was pressed since the signal became active.
        """
        if self._asked:
            raise Stopped

    def __enter__(self) -> StopSignal:
        self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._listener.say("stopping at the next safe point; press Ctrl-C again to stop at once")
