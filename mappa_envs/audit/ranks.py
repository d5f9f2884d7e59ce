"""Rank correlation, and how sure one can be of it: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Points = Sequence[tuple[float, float]]


def average_ranks(values: Sequence[float] | Floats) -> Floats:
    """Return the rank of each value, from 1; equal values share the mean of their ranks.

    >>> average_ranks([10.0, 30.0, 10.0]).tolist()
    [1.5, 3.0, 1.5]
    """
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def rank_correlation(points: Points | Floats) -> float | None:
    """Return Spearman's rank correlation of pairs, -1 to 1.

    Returns:
        None where it cannot be measured: one of the two is always the same.
    """
    columns = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if len(columns) == 0 or (columns == columns[0]).all(axis=0).any():
        return None
    first, second = (average_ranks(column) for column in columns.T)
    first, second = first - first.mean(), second - second.mean()
    found = float(first @ second) / float(np.sqrt((first @ first) * (second @ second)))
    return min(1.0, max(-1.0, found))


def clustered_interval(
    clusters: Sequence[Points], *, seed: int, draws: int = 1000
) -> tuple[float, float] | None:
    """Return the 95 % interval of the rank correlation of all pairs, by the bootstrap.

    Whole clusters are drawn with replacement, since pairs of one cluster are not independent.
    Draws in which the correlation cannot be measured are left out.

    Args:
        clusters: Pairs, those of one episode together.
        seed: Of the draws.
        draws: How many.

    Returns:
        The 2.5th and the 97.5th percentile; None where there are fewer than two clusters, or the
        correlation can be measured in less than half of the draws.
    """
    if len(clusters) < 2:
        return None
    known = [np.asarray(points, dtype=np.float64).reshape(-1, 2) for points in clusters]
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(known), size=(draws, len(known)))
    found = [rank_correlation(np.concatenate([known[i] for i in draw])) for draw in chosen]
    measured = [value for value in found if value is not None]
    if 2 * len(measured) < draws:
        return None
    low, high = np.percentile(measured, [2.5, 97.5])
    return float(low), float(high)
