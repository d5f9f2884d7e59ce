"""Estimates with their uncertainty, from paired and repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval, e.g. `Interval(2.1, 1.7, 2.5)`; as text, a change."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+z.2f} [{self.low:+z.2f}, {self.high:+z.2f}]"


def bootstrap(values: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Interval:
    """Return the mean of `values` with its percentile bootstrap 95 % interval.

    For a paired comparison give the differences, one for each problem: resampling problems then
    keeps each pair together (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("bootstrap of no values; give at least one")
    data = np.asarray(values, dtype=np.float64)
    rows = np.random.default_rng(seed).integers(len(data), size=(resamples, len(data)))
    means = data[rows].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(data.mean()), float(low), float(high))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of solving a problem in k tries: 1 - C(n-c, k) / C(n, k).

    Chen et al., arXiv 2107.03374, eq. 1.

    Raises:
        ValueError: k is not between 1 and the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples; k must be 1 to {samples}")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)
