"""Numbers with what they rest on: how many actions and episodes, and a 95 % interval.

Actions of one episode are not independent, so whole episodes are drawn anew (the cluster
bootstrap: Davison and Hinkley 1997, chapter 3.8). What lacks data has a reason in place of a
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_envs.audit.weighted import Floats, Measure

RESAMPLES = 1000
FEWEST_EPISODES = 5
"""Fewer have no interval: drawn anew they look far more alike than they are."""
_MOST_UNDEFINED = 0.05
"""The share of the draws in which a number may be undefined."""
_MOST_CELLS = 2_000_000
"""Of a table of weights: bounds the memory."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, e.g. `Estimate(6.2, 5.8, 6.6, actions=120, episodes=40)`."""

    value: float | None = None
    """None where it cannot be measured."""
    low: float | None = None
    """The end of the interval; None where there is none."""
    high: float | None = None
    actions: int = 0
    episodes: int = 0
    reason: str = ""
    """Why the number or its interval is not there."""

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high is not None and self.high < 0

    def __str__(self) -> str:
        if self.value is None:
            return f"not measurable: {self.reason}"
        if self.low is None or self.high is None:
            return f"{_rounded(self.value)} (no interval: {self.reason})"
        return f"{_rounded(self.value)} [{_rounded(self.low)}, {_rounded(self.high)}]"


def estimate(
    measure: Measure,
    episodes: Sequence[int],
    undefined: str = "nothing to measure",
    *,
    tail: float = 0.025,
) -> Estimate:
    """Measure something of actions, with the percentile interval of the bootstrap.

    Args:
        measure: What is measured, of weights of the actions.
        episodes: For each action the episode, or whatever else is drawn as a whole.
        undefined: Why the number is not there, where it is not.
        tail: The share of the draws beyond each end of the interval.
    """
    names, places = np.unique(np.asarray(episodes, dtype=np.int64), return_inverse=True)
    actions, count = len(places), len(names)
    if actions == 0:
        return Estimate(reason=undefined)
    value = float(measure(np.ones((1, actions)))[0])
    if np.isnan(value):
        return Estimate(actions=actions, episodes=count, reason=undefined)
    if count < FEWEST_EPISODES:
        reason = f"needs {FEWEST_EPISODES} episodes, has {count}"
        return Estimate(value, actions=actions, episodes=count, reason=reason)
    drawn = _drawn(measure, places, count)
    if np.isnan(drawn).mean() > _MOST_UNDEFINED:
        reason = "too few episodes differ"
        return Estimate(value, actions=actions, episodes=count, reason=reason)
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return Estimate(value, float(low), float(high), actions, count)


def _rounded(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # and no -0.00


def _drawn(measure: Measure, places: np.ndarray, count: int) -> Floats:
    """Return what is measured of each set of episodes that is drawn anew."""
    rng = np.random.default_rng(0)
    at_once = max(1, _MOST_CELLS // max(count, len(places)))
    found = []
    for start in range(0, RESAMPLES, at_once):
        sets = min(at_once, RESAMPLES - start)
        picked = rng.integers(count, size=(sets, count)) + count * np.arange(sets)[:, None]
        times = np.bincount(picked.ravel(), minlength=sets * count).reshape(sets, count)
        found.append(measure(times[:, places].astype(np.float64)))
    return np.concatenate(found)
