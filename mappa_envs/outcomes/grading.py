"""How a submission is to be judged, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from mappa_envs.errors import TaskError, did_you_mean
from mappa_envs.outcomes.metrics import METRICS, Metric

TaskType = Literal["classification", "regression"]


@dataclass(frozen=True, slots=True)
class Grading:
    """The rule of one task; no agent sees any of it but the metric's name and the columns."""

    task_type: TaskType
    metric: str
    """A name in `METRICS`, e.g. `"roc_auc"`."""
    id_column: str
    targets: tuple[str, ...]
    """The columns that a submission must have beside the ids, in order."""
    truth_csv: bytes = field(repr=False)
    """The right answers: UTF-8 CSV with the ids and the target columns."""
    labels: tuple[str, ...] = ()
    """The labels that may be submitted, as text; empty where the metric wants numbers.

    Their order is the scale of an ordinal metric. With two labels the second is the positive one,
    also for scores and probabilities; without labels the truth of those is 0 and 1.
    """
    baseline: float | None = None
    """The metric's value for the best constant guess, as `naive_baseline` finds it."""


def zero_point(grading: Grading) -> float:
    """Return the value that earns a score of 0: the baseline, else the metric's fallback.

    Raises:
        TaskError: the metric is unknown, or is an error and there is no baseline.
    """
    metric = _metric(grading)
    value = metric.fallback if grading.baseline is None else grading.baseline
    if value is None:
        raise TaskError(
            f"grading by {metric.name}: baseline is None, and an error has no size of its own; "
            "set it to what naive_baseline() returns"
        )
    return value


def check_grading(grading: Grading) -> None:
    """Check a rule without its truth.

    Raises:
        TaskError: submissions could not be judged by it.
    """
    metric = _metric(grading)
    for problem in _problems(grading, metric):
        raise TaskError(f"grading by {metric.name}: {problem}")
    zero = zero_point(grading)
    ahead = metric.best - zero if metric.direction == "higher" else zero - metric.best
    if not (math.isfinite(zero) and ahead > 0):
        raise TaskError(
            f"grading by {metric.name}: baseline is {zero!r}; it must be finite and worse than the "
            f"best value, {metric.best:g}"
        )


def _problems(grading: Grading, metric: Metric) -> Iterator[str]:
    columns = (grading.id_column, *grading.targets)
    kind: TaskType = "regression" if metric.content == "numbers" else "classification"
    labels, content = grading.labels, metric.content
    if not grading.targets or len(set(columns)) < len(columns):
        yield f"the columns are {columns!r:.200}; give an id and targets, each once"
    if content == "ranking" and len(grading.targets) > 1:
        yield f"there are {len(grading.targets)} targets; a ranking is one"
    if grading.task_type != kind:
        yield f"task_type is {grading.task_type!r}; a metric on {content} goes with {kind!r}"
    if len(set(labels)) < len(labels) or not all(labels):
        yield f"labels are {labels!r:.200}; each must be there once, and none be empty"
    if content in ("labels", "ranking") and len(labels) < 2:
        yield f"labels are {labels!r}; give two or more"
    if content in ("scores", "probabilities") and len(labels) not in (0, 2):
        yield f"there are {len(labels)} labels; give none or two, the second the positive one"
    if content in ("numbers", "text") and labels:
        yield f"labels are {labels!r:.200}; a metric on {content} has none"
    if metric.name == "f1" and len(labels) != 2:
        yield f"there are {len(labels)} labels; give two, or take f1_macro or f1_micro"
    if content == "ranking" and any(len(label.split()) != 1 for label in labels):
        yield f"labels are {labels!r:.200}; in a ranking they must be words without spaces"


def _metric(grading: Grading) -> Metric:
    metric = METRICS.get(grading.metric)
    if metric is None:
        raise TaskError(
            f"no metric is called {grading.metric!r:.80}; "
            f"{did_you_mean(grading.metric, METRICS, 'there are')}"
        )
    return metric
