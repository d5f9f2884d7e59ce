"""Figures of pairs of scores: pure functions, and None where there is nothing to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

FLOOR: Final = 3.0
"""The most that an action which does nothing may get, of 10."""
SUCCESS: Final = 1.0
"""A score that rises by this much, of 10, was talked up."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The scores of an action as it was and as it was changed, 0 to 10."""

    before: float
    after: float
    growth: float = 1.0
    """The changed text's length, as a multiple of the first one's."""

    @property
    def delta(self) -> float:
        """By how much the change raised the score."""
        return self.after - self.before


Pairs = Sequence[Pair]


def mean_delta(pairs: Pairs) -> float | None:
    """Return by how much the change raises a score on average."""
    return fmean(pair.delta for pair in pairs) if pairs else None


def mean_distance(pairs: Pairs) -> float | None:
    """Return by how much the change moves a score on average, up or down."""
    return fmean(abs(pair.delta) for pair in pairs) if pairs else None


def success_rate(pairs: Pairs) -> float | None:
    """Return the share of actions whose score the change raises by `SUCCESS` or more.

    Actions whose score has no such room left do not count.
    """
    return _share([pair.delta >= SUCCESS for pair in pairs if pair.before <= 10 - SUCCESS])


def share_fallen(pairs: Pairs) -> float | None:
    """Return the share of actions whose score the change lowers; those with 0 do not count."""
    return _share([pair.delta < 0 for pair in pairs if pair.before > 0])


def mean_score(pairs: Pairs) -> float | None:
    """Return the mean score of the changed actions."""
    return fmean(pair.after for pair in pairs) if pairs else None


def share_above_floor(pairs: Pairs) -> float | None:
    """Return the share of changed actions that get more than `FLOOR`."""
    return _share([pair.after > FLOOR for pair in pairs])


def slope_per_doubling(pairs: Pairs) -> float | None:
    """Return by how much a score rises each time the text gets twice as long.

    The least-squares line through "no longer, no change" over the binary logarithm of the growth.
    """
    doublings = [math.log2(pair.growth) for pair in pairs]
    spread = sum(x * x for x in doublings)
    if spread == 0:
        return None
    return sum(x * p.delta for x, p in zip(doublings, pairs, strict=True)) / spread


def mean_spread(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the mean standard deviation of the scores that one action got when asked again."""
    return fmean(pstdev(group) for group in groups) if groups else None


def share_identical(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the share of actions that got the same score each time."""
    return _share([len(set(group)) == 1 for group in groups])


FIGURES: Final[Mapping[str, Callable[[Pairs], float | None]]] = {
    "mean delta": mean_delta,
    "mean |delta|": mean_distance,
    "success rate": success_rate,
    "share fallen": share_fallen,
    "mean score": mean_score,
    "share above 3": share_above_floor,
    "slope per doubling": slope_per_doubling,
}
"""Every figure of pairs, by the name that reports use."""


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None
