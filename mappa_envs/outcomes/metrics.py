"""The metrics of the tables benchmark, as plain functions on arrays.

Every function takes the truth and the prediction, one row per id and one column per target (or one
axis for one target), and returns the mean over the columns. Columns whose truth has one value only
cannot be ranked or correlated; they are left out by the metrics that do so.

Labels come as their positions in `Grading.labels`: 0, 1, 2, ... With two labels, 1 is the positive
one. scikit-learn and scipy (extra `datascience`) are imported by the first call, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Direction = Literal["higher", "lower"]
"""Which values are better."""
Content = Literal["labels", "scores", "probabilities", "numbers", "text", "ranking"]
"""What the target cells of a submission hold.

`labels`: one known label. `scores`: any number, higher where the positive label is likelier.
`probabilities`: from 0 to 1; rows of several columns are divided by their sum. `numbers`: any
number. `text`: words. `ranking`: known labels with spaces between them, the likeliest first.
"""

LARGEST = 1e100
"""A larger number is out of range: its square would soon overflow, and no metric be finite."""
GUESSES = 3
"""How many labels of a ranking count."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What is known of a metric beforehand."""

    name: str
    direction: Direction
    content: Content
    compute: Callable[[Array, Array], float] = field(repr=False)
    """Truth and prediction in, value out."""
    best: float
    """The value of the right answers."""
    fallback: float | None
    """What knowing nothing gives, reported where nothing valid was submitted.

    None for errors, whose size is a matter of the target: there `Grading.baseline` is reported.
    """
    minimum: float = -LARGEST
    """The least number that may be submitted."""
    maximum: float = LARGEST
    """The largest number that may be submitted."""


def roc_auc(truth: Array, scores: Array) -> float:
    """Return the area under the ROC curve of 0/1 truth.

    Raises:
        ValueError: no column of the truth has both values.
    """
    return _mean(_sklearn().roc_auc_score(t, s) for t, s in _varied(truth, scores))


def normalized_gini(truth: Array, scores: Array) -> float:
    """Return the Gini coefficient over that of the right answers: 2 AUC - 1 for 0/1 truth.

    Raises:
        ValueError: no column of the truth has both values.
    """
    return 2 * roc_auc(truth, scores) - 1


def accuracy(truth: Array, predicted: Array) -> float:
    """Return the share of right labels."""
    return float(np.mean(_columns(truth) == _columns(predicted)))


def f1(truth: Array, predicted: Array) -> float:
    """Return the F1 of label 1 among labels 0 and 1; 0 where it is neither there nor predicted."""
    return _f1(truth, predicted, "binary")


def f1_macro(truth: Array, predicted: Array) -> float:
    """Return the mean of the F1 of each label that is there or predicted."""
    return _f1(truth, predicted, "macro")


def f1_micro(truth: Array, predicted: Array) -> float:
    """Return the F1 over all labels together; with one label per row it is the accuracy."""
    return _f1(truth, predicted, "micro")


def f1_weighted(truth: Array, predicted: Array) -> float:
    """Return the mean of the F1 of each label, weighted by how often the label is there."""
    return _f1(truth, predicted, "weighted")


def quadratic_weighted_kappa(truth: Array, predicted: Array) -> float:
    """Return Cohen's kappa with the squared distance of two labels' positions as weight."""
    return _mean(_kappa(t, p) for t, p in _pairs(truth, predicted))


def map_at_3(truth: Array, ranked: Array) -> float:
    """Return the mean of 1, 1/2, 1/3 or 0, by where the right label is among three guesses.

    Args:
        truth: One label per row.
        ranked: Three labels per row, the likeliest first; -1 stands for none.
    """
    hits = ranked[:, :GUESSES] == np.reshape(truth, (-1, 1))
    return float(np.mean(hits.any(axis=1) / (1 + hits.argmax(axis=1))))


def log_loss(truth: Array, probabilities: Array) -> float:
    """Return the mean of -ln of the probability of what is true.

    One column holds the probability of 1. Several columns are one class each: the truth has a 1 in
    its class, and the probabilities of a row are divided by their sum.
    """
    wanted, given = _columns(truth), _columns(probabilities)
    if wanted.shape[1] == 1:
        return float(_sklearn().log_loss(wanted[:, 0], given[:, 0], labels=[0, 1]))
    shares = given / given.sum(axis=1, keepdims=True)
    classes = range(wanted.shape[1])
    return float(_sklearn().log_loss(wanted.argmax(axis=1), shares, labels=classes))


def mse(truth: Array, predicted: Array) -> float:
    """Return the mean squared error."""
    return float(_sklearn().mean_squared_error(truth, predicted))


def rmse(truth: Array, predicted: Array) -> float:
    """Return the root of the mean squared error; the mean of the columns' roots (MCRMSE)."""
    return float(_sklearn().root_mean_squared_error(truth, predicted))


def rmsle(truth: Array, predicted: Array) -> float:
    """Return the RMSE of ln(1 + x); the mean of the columns' values."""
    return rmse(np.log1p(truth), np.log1p(predicted))


def mae(truth: Array, predicted: Array) -> float:
    """Return the mean absolute error."""
    return float(_sklearn().mean_absolute_error(truth, predicted))


def medae(truth: Array, predicted: Array) -> float:
    """Return the median absolute error."""
    return float(_sklearn().median_absolute_error(truth, predicted))


def smape(truth: Array, predicted: Array) -> float:
    """Return the symmetric mean absolute percentage error, 0 to 200; 0/0 counts as 0."""
    wanted, given = _columns(truth), _columns(predicted)
    size = (np.abs(wanted) + np.abs(given)) / 2
    return float(100 * np.mean(np.abs(wanted - given) / np.where(size == 0, 1, size)))


def r2(truth: Array, predicted: Array) -> float:
    """Return the coefficient of determination."""
    return float(_sklearn().r2_score(truth, predicted))


def pearson(truth: Array, predicted: Array) -> float:
    """Return Pearson's correlation; a prediction with one value only has none, and counts 0.

    Raises:
        ValueError: every column of the truth is constant.
    """
    return _correlation("pearsonr", truth, predicted)


def spearman(truth: Array, predicted: Array) -> float:
    """Return Spearman's rank correlation; one value only counts 0.

    Raises:
        ValueError: every column of the truth is constant.
    """
    return _correlation("spearmanr", truth, predicted)


def jaccard(truth: Array, predicted: Array) -> float:
    """Return the mean share of the words in either text that are in both, whatever their case."""
    pairs = zip(_columns(truth).flat, _columns(predicted).flat, strict=True)
    return _mean(_overlap(set(a.lower().split()), set(b.lower().split())) for a, b in pairs)


def _f1(truth: Array, predicted: Array, average: str) -> float:
    score = _sklearn().f1_score
    pairs = _pairs(truth, predicted)
    return _mean(score(t, p, pos_label=1, average=average, zero_division=0) for t, p in pairs)


def _kappa(truth: Array, predicted: Array) -> float:
    if np.array_equal(truth, predicted):
        return 1.0
    both = np.concatenate([truth, predicted])
    scale = np.arange(both.min(), both.max() + 1)
    return float(_sklearn().cohen_kappa_score(truth, predicted, labels=scale, weights="quadratic"))


def _correlation(name: str, truth: Array, predicted: Array) -> float:
    from scipy import stats  # type: ignore[import-untyped]

    correlate = getattr(stats, name)
    pairs = _varied(truth, predicted)
    values = [0.0 if np.ptp(p) == 0 else float(correlate(t, p).statistic) for t, p in pairs]
    return _mean(0.0 if math.isnan(value) else value for value in values)


def _overlap(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0


def _columns(values: Array) -> Array:
    return np.reshape(values, (len(values), -1))


def _pairs(truth: Array, predicted: Array) -> list[tuple[Array, Array]]:
    return list(zip(_columns(truth).T, _columns(predicted).T, strict=True))


def _varied(truth: Array, predicted: Array) -> list[tuple[Array, Array]]:
    pairs = [(t, p) for t, p in _pairs(truth, predicted) if np.ptp(t) > 0]
    if not pairs:
        raise ValueError("every target column of the truth has one value only")
    return pairs


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _sklearn() -> Any:
    from sklearn import metrics  # type: ignore[import-untyped]

    return metrics


_ABOVE_MINUS_ONE = math.nextafter(-1.0, 0.0)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("roc_auc", "higher", "scores", roc_auc, 1.0, 0.5),
            Metric("normalized_gini", "higher", "scores", normalized_gini, 1.0, 0.0),
            Metric("accuracy", "higher", "labels", accuracy, 1.0, 0.0),
            Metric("f1", "higher", "labels", f1, 1.0, 0.0),
            Metric("f1_macro", "higher", "labels", f1_macro, 1.0, 0.0),
            Metric("f1_micro", "higher", "labels", f1_micro, 1.0, 0.0),
            Metric(
                "quadratic_weighted_kappa", "higher", "labels", quadratic_weighted_kappa, 1.0, 0.0
            ),
            Metric("map_at_3", "higher", "ranking", map_at_3, 1.0, 0.0),
            Metric("log_loss", "lower", "probabilities", log_loss, 0.0, None, 0.0, 1.0),
            Metric("mse", "lower", "numbers", mse, 0.0, None),
            Metric("rmse", "lower", "numbers", rmse, 0.0, None),
            Metric("mcrmse", "lower", "numbers", rmse, 0.0, None),
            Metric("rmsle", "lower", "numbers", rmsle, 0.0, None, _ABOVE_MINUS_ONE),
            Metric("mcrmsle", "lower", "numbers", rmsle, 0.0, None, _ABOVE_MINUS_ONE),
            Metric("mae", "lower", "numbers", mae, 0.0, None),
            Metric("medae", "lower", "numbers", medae, 0.0, None),
            Metric("smape", "lower", "numbers", smape, 0.0, None),
            Metric("r2", "higher", "numbers", r2, 1.0, 0.0),
            Metric("pearson", "higher", "numbers", pearson, 1.0, 0.0),
            Metric("spearman", "higher", "numbers", spearman, 1.0, 0.0),
            Metric("jaccard", "higher", "text", jaccard, 1.0, 0.0),
        )
    }
)
"""Every metric by its name; `mcrmse` and `mcrmsle` are the column means under their own names."""
