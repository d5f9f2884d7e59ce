"""The numbers of an audit as functions of weighted actions, for many sets of weights at once.

Each function takes weights of shape (sets, actions) and returns one number for each set, NaN where
it is not defined. An episode drawn twice by the bootstrap is an episode of weight 2, so the same
function gives a number and its resampled values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Measure = Callable[[Floats], Floats]
"""Weights of shape (sets, actions) to numbers of shape (sets,)."""
_NOTHING = 1e-9
"""A variance below it is that of equal values, but for rounding."""


def mean(weights: Floats, values: Floats) -> Floats:
    """Return the mean of `values`, which may differ from set to set."""
    return _divide((weights * values).sum(axis=1), weights.sum(axis=1))


def gap(weights: Floats, values: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """Return the mean of the chosen actions less that of the others."""
    return mean(weights * chosen, values) - mean(weights * ~chosen, values)


def slope(weights: Floats, x: Floats, y: Floats) -> Floats:
    """Return by how much `y` rises for each unit of `x`, by least squares."""
    return _divide(_covariance(weights, x, y), _covariance(weights, x, x))


def correlation(weights: Floats, x: Floats, y: Floats) -> Floats:
    """Return Spearman's rank correlation; equal values share the mean of their ranks."""
    ranked = ranks(weights, x), ranks(weights, y)
    spread = _covariance(weights, ranked[0], ranked[0]) * _covariance(weights, ranked[1], ranked[1])
    return _divide(_covariance(weights, *ranked), np.sqrt(spread))


def ranks(weights: Floats, values: Floats) -> Floats:
    """Return ranks from 1 in each set; a value of weight w takes w places and their mean rank."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)
    places = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    found: Floats = places[:, group]
    return found


def kappa(weights: Floats, one: Floats, other: Floats) -> Floats:
    """Return Cohen's kappa with quadratic weights: 1 is agreement, 0 what chance would give.

    It is 1 - E[(a - b)^2] / E[(a - b')^2], where b' is the other's score of an action drawn anew.
    """
    shift = mean(weights, one) - mean(weights, other)
    by_chance = _covariance(weights, one, one) + _covariance(weights, other, other) + shift**2
    return 1 - _divide(mean(weights, (one - other) ** 2), by_chance)


def entropy_bits(values: NDArray[Any]) -> float:
    """Return the entropy of the distribution of values, in bits: 0 where all are the same."""
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # and no -0.0


def isotonic(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the rising curve closest to points by squares, as its places and heights.

    Pool adjacent violators: neighbours whose heights fall are merged until none falls
    (Ayer et al. 1955, doi:10.1214/aoms/1177728423).
    """
    places, group = np.unique(x, return_inverse=True)
    blocks: list[tuple[float, int, int]] = []
    """The mean, the number of points and the number of places of each."""
    totals, counts = np.bincount(group, y), np.bincount(group)
    for total, count in zip(totals.tolist(), counts.tolist(), strict=True):
        height, points, width = total / count, count, 1
        while blocks and blocks[-1][0] >= height:
            before, more, wider = blocks.pop()
            height = (height * points + before * more) / (points + more)
            points, width = points + more, width + wider
        blocks.append((height, points, width))
    heights = np.repeat([b[0] for b in blocks], [b[2] for b in blocks])
    return places.astype(np.float64), heights.astype(np.float64)


def _covariance(weights: Floats, x: Floats, y: Floats) -> Floats:
    x, y = (values - mean(weights, values)[:, None] for values in (x, y))
    return mean(weights, x * y)


def _divide(above: Floats, below: Floats) -> Floats:
    """Divide; NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > _NOTHING, above / below, np.nan)
