"""What every coach does: judge one turn, or say that it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mappa_envs.types import Assessment, Turn


@dataclass(frozen=True, slots=True)
class CoachContext:
    """What a coach knows besides the turn itself; the gold answer is not part of it."""

    problem: str
    """The task's text."""
    history: tuple[Turn, ...]
    """The episode's earlier turns, of all agents, oldest first."""


@runtime_checkable
class Coach(Protocol):
    """Judges single actions from 0 to 10, with what the tools said in hand."""

    id: str
    """Names the coach in the ledger, e.g. `"rubric"`."""

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return the judgement of `turn`.

        Raises:
            CoachError: the turn could not be judged. Never invents a score.
        """
        ...


@runtime_checkable
class AsyncCoach(Coach, Protocol):
    """A coach that can also be awaited, e.g. one that asks a server; `astep` does so."""

    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return what `assess` returns, without holding up the event loop.

        Raises:
            CoachError: the turn could not be judged.
        """
        ...
