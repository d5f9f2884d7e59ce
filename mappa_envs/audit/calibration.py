"""Whether a higher score means a better outcome: reliability tables and the calibration error."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mappa_envs.audit.actions import Action
from mappa_envs.audit.estimates import Estimate
from mappa_envs.audit.scores import by_role, mean_of, scored, scores_of
from mappa_envs.audit.weighted import Floats, isotonic

WIDTH: Final = 2
"""Points: the width of a bin of the reliability table; the last one holds 10 too."""
FEWEST_OF_A_BIN: Final = 5
"""Actions that a bin needs to count as a step up or down."""
FEWEST_HELD_OUT: Final = 50
"""Episodes that the error needs: of fewer, chance alone makes an error of about 0.1."""
_ERROR_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """The actions with a score of `low` to below `high`."""

    low: float
    high: float
    actions: int
    score: float
    """Their mean score."""
    outcome: Estimate
    """The mean outcome of their episodes."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the outcomes go up with a role's scores."""

    role: str
    bins: tuple[Bin, ...]
    """Those that hold actions, lowest first."""
    steps: int
    """From one bin to the next, where both hold at least 5 actions."""
    falls: int
    """Steps at which the mean outcome falls."""
    error: float | None
    """The expected calibration error, 0 to 1, of outcomes told from scores; None without one."""
    held_out: int
    """Episodes it was measured on."""
    reason: str
    """Why there is no error."""


def calibrations(actions: Sequence[Action]) -> list[Calibration]:
    """Return each role's reliability table and calibration error."""
    known = [action for action in scored(actions) if action.outcome is not None]
    return [_calibration(role, own) for role, own in by_role(known).items()]


def expected_error(told: Floats, outcomes: Floats) -> float:
    """Return the mean distance of told from real outcomes, in ten bins of what was told."""
    bins = np.minimum((told * _ERROR_BINS).astype(int), _ERROR_BINS - 1)
    distances = np.bincount(bins, told - outcomes, minlength=_ERROR_BINS)
    return float(np.abs(distances).sum() / len(told))


def _calibration(role: str, actions: Sequence[Action]) -> Calibration:
    scores, outcomes = scores_of(actions), outcomes_of(actions)
    places = np.minimum(scores // WIDTH, 10 // WIDTH - 1).astype(int)
    bins = [
        _bin(place, [a for a, p in zip(actions, places, strict=True) if p == place])
        for place in np.unique(places).tolist()
    ]
    large = [each.outcome.value or 0.0 for each in bins if each.actions >= FEWEST_OF_A_BIN]
    falls = sum(after < before for before, after in itertools.pairwise(large))
    error, held_out, reason = _held_out_error(actions, scores, outcomes)
    return Calibration(role, tuple(bins), max(len(large) - 1, 0), falls, error, held_out, reason)


def _bin(place: int, actions: Sequence[Action]) -> Bin:
    return Bin(
        low=float(place * WIDTH),
        high=float((place + 1) * WIDTH),
        actions=len(actions),
        score=float(scores_of(actions).mean()),
        outcome=mean_of(outcomes_of(actions), actions, "no episode has an outcome"),
    )


def _held_out_error(
    actions: Sequence[Action], scores: Floats, outcomes: Floats
) -> tuple[float | None, int, str]:
    """Fit outcomes to the scores of one half of the episodes, and measure on the other."""
    names, episodes = np.unique([action.episode for action in actions], return_inverse=True)
    held = np.random.default_rng(0).permutation(len(names)) < len(names) // 2
    held_out, chosen = int(held.sum()), held[episodes]
    if held_out < FEWEST_HELD_OUT:
        return None, held_out, f"needs {FEWEST_HELD_OUT} held-out episodes, has {held_out}"
    told = np.interp(scores[chosen], *isotonic(scores[~chosen], outcomes[~chosen]))
    return expected_error(told, outcomes[chosen]), held_out, ""


def outcomes_of(actions: Sequence[Action]) -> Floats:
    """Return the outcomes of actions whose episodes have one."""
    return np.array([action.outcome for action in actions], dtype=np.float64)
