"""What every coach does: judge one turn, or say that it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mappa_envs.types import Assessment, Outcome, Turn


@dataclass(frozen=True, slots=True)
class CoachContext:
    """What a coach knows besides the turn itself."""

    problem: str
    """The task's text."""
    history: tuple[Turn, ...]
    """The episode's earlier turns, of all agents, oldest first."""
    task_id: str = ""
    truth: str | None = None
    """The right answer in words; only for a coach that asks for it, see `Coach`."""
    later: tuple[Turn, ...] = ()
    """The turns after this one, oldest first, when the coach looks back; else empty."""
    outcome: Outcome | None = None
    """The task's verdict when the coach looks back; None while the episode goes on."""
    sample: int = 0
    """Asks for an independent judgement: a coach that keeps answers keeps one for each number."""


@runtime_checkable
class Coach(Protocol):
    """Judges single actions from 0 to 10, with what the tools said in hand.

    A coach with an attribute `truth_roles`, names of roles, is shown the right answer when it
    judges those, and the ledger says so.
    """

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
