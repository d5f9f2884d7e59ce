"""Judge a submission against the truth; runs in the grading process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mappa_envs.outcomes import metrics
from mappa_envs.outcomes.grade import Figures
from mappa_envs.outcomes.grading import Grading
from mappa_envs.outcomes.metrics import METRICS, Array
from mappa_envs.outcomes.submissions import Form, check, read_rows

_THRESHOLD = 0.5
_PERCENT = 100.0


def read_truth(grading: Grading, form: Form) -> Array:
    """Return the right answers, one row per id; labels are their positions, see `Grading.labels`.

    Raises:
        ValueError: they are no truth by which submissions can be judged.
    """
    checked = check(grading.truth_csv, truth_form(grading, form))
    if checked.values is None:
        raise ValueError(f"the truth is {checked.verdict}")
    values = checked.values
    if form.content in ("scores", "probabilities") and not np.isin(values, (0, 1)).all():
        raise ValueError("the truth of scores and probabilities must be 0 and 1, or two labels")
    if form.content == "probabilities" and values.shape[1] > 1 and (values.sum(axis=1) != 1).any():
        raise ValueError("each row of the truth must have a 1 in one column, and 0 in the others")
    return values


def form_for(grading: Grading) -> Form:
    """Return the form that is due, with the ids of the truth; its values are not looked at.

    Raises:
        ValueError: the truth is no table, or has an id twice.
    """
    columns = (grading.id_column, *grading.targets)
    ids = [row[0] for row in read_rows(grading.truth_csv, columns)]
    if len(set(ids)) < len(ids):
        raise ValueError("the truth has an id twice")
    return form_of(grading, ids)


def form_of(grading: Grading, ids: Sequence[str]) -> Form:
    """Return the form of the submissions that a rule judges."""
    metric = METRICS[grading.metric]
    return Form(
        id_column=grading.id_column,
        targets=grading.targets,
        ids=tuple(ids),
        content=metric.content,
        labels=grading.labels if metric.content in ("labels", "ranking") else (),
        minimum=metric.minimum,
        maximum=metric.maximum,
    )


def judge(grading: Grading, submission: bytes) -> Figures:
    """Judge a submission whatever its bytes are; the truth's values are read after the verdict.

    Raises:
        ValueError: the truth cannot be used.
    """
    form = form_for(grading)
    checked = check(submission, form)
    if checked.values is None:
        return Figures(checked.verdict, checked.coverage)
    truth = read_truth(grading, form)
    value = METRICS[grading.metric].compute(truth, checked.values)
    if not math.isfinite(value):
        raise ValueError("the metric has no value for this truth")
    if grading.task_type == "regression":
        return _regression(truth, checked.values, value)
    return _classification(truth, checked.values, value, grading)


def check_truth(grading: Grading) -> None:
    """Judge the truth by itself.

    Raises:
        ValueError: the right answers do not get the metric's best value.
    """
    truth, metric = read_truth(grading, form_for(grading)), METRICS[grading.metric]
    value = metric.compute(truth, truth)
    if not math.isclose(value, metric.best, abs_tol=1e-9):
        raise ValueError(f"the right answers themselves get {value:g}, not {metric.best:g}")


def truth_form(grading: Grading, form: Form) -> Form:
    """Return the form of target columns: one label where scores or a ranking are submitted."""
    if form.content in ("scores", "probabilities") and grading.labels:
        return replace(form, content="labels", labels=grading.labels)
    return replace(form, content="labels") if form.content == "ranking" else form


def _regression(truth: Array, predicted: Array, value: float) -> Figures:
    spread = np.ptp(truth, axis=0)
    errors = np.sqrt(np.mean((truth - predicted) ** 2, axis=0))
    varied = spread > 0
    percent = _PERCENT * float(np.mean(errors[varied] / spread[varied])) if varied.any() else None
    return Figures("valid", 1.0, value=value, rmse=float(np.mean(errors)), rmse_percent=percent)


def _classification(truth: Array, predicted: Array, value: float, rule: Grading) -> Figures:
    wanted, given, classes = _as_labels(truth, predicted, rule)
    f1 = (metrics.f1 if classes == 2 else metrics.f1_weighted)(wanted, given)
    return Figures("valid", 1.0, value=value, accuracy=metrics.accuracy(wanted, given), f1=f1)


def _as_labels(truth: Array, predicted: Array, rule: Grading) -> tuple[Array, Array, int]:
    """Return both as numbered labels, and how many labels there are."""
    content = METRICS[rule.metric].content
    if content in ("labels", "ranking"):
        return truth, predicted[:, : truth.shape[1]], len(rule.labels)
    if content == "text":
        names, numbers = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
        wanted, given = np.split(numbers.reshape(-1, truth.shape[1]), 2)
        return wanted, given, max(3, len(names))
    if content == "probabilities" and truth.shape[1] > 1:
        return truth.argmax(axis=1), predicted.argmax(axis=1), truth.shape[1]
    return truth.astype(int), (predicted > _THRESHOLD).astype(int), 2
