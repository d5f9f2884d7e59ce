"""What a task's metric gives for the best guess that needs no features: one answer for every row.

The guess is fitted on the training labels, which every team has, and scored on the truth. It uses
scikit-learn (extra `datascience`), and is for those who write tasks, not for submissions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.grading import Grading
from mappa_envs.outcomes.metrics import GUESSES, METRICS, Array, Metric
from mappa_envs.outcomes.submissions import Rejected, cell_reader
from mappa_envs.outcomes.table_judge import form_for, read_truth, truth_form

_MEDIAN = ("mae", "medae", "smape")
_LOGARITHMIC = ("rmsle", "mcrmsle")
_NO_CONSTANT = ("roc_auc", "normalized_gini", "pearson", "spearman")


def naive_baseline(grading: Grading, train: Mapping[str, Sequence[str]]) -> float:
    """Return the metric's value for the best constant guess.

    It is the mean, the median (absolute errors) or the mean of logarithms for numbers, the classes'
    frequencies for probabilities, the most frequent label, labels or text otherwise; of the two
    most frequent labels the one that the metric prefers on the training labels. Where one value for
    all rows ranks nothing, it is the metric's fallback.

    Args:
        grading: A rule; what it has for a baseline is not looked at.
        train: The target columns of the training table as text; cells that cannot be read, e.g.
            missing ones, are passed over.

    Raises:
        TaskError: a target has no readable cell in `train`, or the truth cannot be used.
    """
    metric = METRICS[grading.metric]
    if metric.fallback is not None and metric.name in _NO_CONSTANT:
        return metric.fallback
    try:
        form = form_for(grading)
        truth = read_truth(grading, form)
    except ValueError as error:
        raise TaskError(f"grading by {metric.name}: {error}; correct truth_csv") from None
    read = cell_reader(truth_form(grading, form))
    columns = [_readable(train[target], target, read) for target in grading.targets]
    guess = np.concatenate([_guess(column, metric) for column in columns])
    return metric.compute(truth, np.tile(guess, (len(truth), 1)))


def _readable(cells: Sequence[str], target: str, read: Any) -> Array:
    values = []
    for cell in cells:
        try:
            values.append(read(cell))
        except Rejected:
            continue
    if not values:
        raise TaskError(
            f"target column {target!r} of the training table has no value that can be read, "
            f"e.g. {list(cells[:3])!r:.80}; check the column and the labels"
        )
    return np.array(values)


def _guess(values: Array, metric: Metric) -> Array:
    """Return the constant for one column; of a ranking, its three labels."""
    if metric.content in ("labels", "ranking", "text"):
        common = [value for value, _ in Counter(values.tolist()).most_common(GUESSES)]
        if metric.content == "ranking":
            return np.array(common + [-1] * (GUESSES - len(common)))
        if metric.content == "labels":
            common[:2] = sorted(common[:2], key=lambda label: -_constant(values, label, metric))
        return np.array(common[:1], dtype=object if metric.content == "text" else None)
    if metric.name in _MEDIAN:
        return np.array([np.median(values)])
    if metric.name in _LOGARITHMIC:
        return np.array([np.expm1(np.mean(np.log1p(values)))])
    return np.array([np.mean(values)])


def _constant(values: Array, label: int, metric: Metric) -> float:
    return metric.compute(values, np.full(len(values), label))
