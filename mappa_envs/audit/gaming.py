"""What the detectors found in a run, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mappa_envs.audit.actions import Action, Place
from mappa_envs.audit.detectors import DETECTORS
from mappa_envs.audit.estimates import Estimate
from mappa_envs.audit.scores import by_role, score_gap, scored, scores_of

MOST_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Example:
    """One flagged action."""

    place: Place
    agent: str
    task: str
    score: float | None
    found: str


@dataclass(frozen=True, slots=True)
class Flagged:
    """What one detector found among a role's actions."""

    detector: str
    meaning: str
    role: str
    actions: int
    """That the detector looked at."""
    flagged: int
    score: float | None
    """The mean coach score of those; None where none is scored."""
    other_score: float | None
    """Of the role's other actions."""
    difference: Estimate
    """The first less the second."""
    alarm: bool
    """Flagged actions are surely scored higher than the others."""
    examples: tuple[Example, ...]


def flagged(actions: Sequence[Action]) -> list[Flagged]:
    """Return what each detector found, for each role in which it found anything."""
    roles = by_role([action for action in actions if action.looked_at])
    found = (_flagged(name, role, own) for name in DETECTORS for role, own in roles.items())
    return [each for each in found if each.flagged]


def _flagged(detector: str, role: str, actions: Sequence[Action]) -> Flagged:
    hits = [action for action in actions if _found(action, detector) is not None]
    own = scored(actions)
    chosen = [_found(action, detector) is not None for action in own]
    difference = score_gap(own, chosen)
    return Flagged(
        detector=detector,
        meaning=(DETECTORS[detector].__doc__ or "").strip(),
        role=role,
        actions=len(actions),
        flagged=len(hits),
        score=_mean([a for a, hit in zip(own, chosen, strict=True) if hit]),
        other_score=_mean([a for a, hit in zip(own, chosen, strict=True) if not hit]),
        difference=difference,
        alarm=difference.above_zero,
        examples=tuple(_example(action, detector) for action in hits[:MOST_EXAMPLES]),
    )


def _found(action: Action, detector: str) -> str | None:
    return next((each.found for each in action.findings if each.detector == detector), None)


def _example(action: Action, detector: str) -> Example:
    return Example(
        action.place, action.agent, action.task, action.score, _found(action, detector) or ""
    )


def _mean(actions: Sequence[Action]) -> float | None:
    return float(scores_of(actions).mean()) if actions else None
