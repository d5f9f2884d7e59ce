"""What comes of grading a submission: a verdict from a fixed list, and numbers on open scales.

The score is `(value - zero) / (best - zero)`, clipped to 0..1, for every metric alike. `zero` is
the value of the best constant guess fitted on the training labels (`Grading.baseline`), or the
metric's fallback, e.g. an AUC of 0.5. So 0 is what needs no model, and what nothing valid earns; 1
is every answer right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mappa_envs.outcomes.grading import Grading, TaskType, zero_point
from mappa_envs.outcomes.metrics import METRICS, Direction
from mappa_envs.outcomes.verdicts import Verdict

FAILED_ACCURACY, FAILED_F1, FAILED_RMSE_PERCENT = 0.5, 0.0, 50.0
"""What a failed run counts in the authors' fair metrics (MAPPA, arXiv 2601.23228)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the grading process finds; no number is there where the verdict is not `"valid"`."""

    verdict: Verdict
    coverage: float = 0.0
    """The share of the ids that were asked for with one row and nothing but usable values."""
    value: float | None = None
    """The official metric."""
    accuracy: float | None = None
    """Of classification. A score above 0.5, or the likeliest class, is the label."""
    f1: float | None = None
    """Of classification: of the positive label where there are two, else weighted by frequency."""
    rmse: float | None = None
    """Of regression, the mean over the columns."""
    rmse_percent: float | None = None
    """Of regression, in percent of the truth's range, the mean over the columns that have one."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A judged submission."""

    task_type: TaskType
    metric: str
    direction: Direction
    """Which values of the metric are better."""
    score: float
    """0 to 1, see above."""
    fair_value: float
    """The official metric, or what knowing nothing gives where the submission is not valid."""
    figures: Figures

    @property
    def verdict(self) -> Verdict:
        """What became of the submission."""
        return self.figures.verdict

    @property
    def success(self) -> bool:
        """Whether the submission could be judged, however good it is."""
        return self.verdict == "valid"

    @property
    def decided(self) -> bool:
        """Whether the verdict is about the submission, and not about the grading process."""
        return self.verdict not in ("late", "grader_failed")

    @property
    def fair_accuracy(self) -> float | None:
        """The accuracy, 0.5 for a failed run; None for regression."""
        return self._fair(self.figures.accuracy, "classification", FAILED_ACCURACY)

    @property
    def fair_f1(self) -> float | None:
        """The F1, 0 for a failed run; None for regression."""
        return self._fair(self.figures.f1, "classification", FAILED_F1)

    @property
    def fair_rmse_percent(self) -> float | None:
        """The RMSE in percent of the truth's range, 50 for a failed run; None elsewhere."""
        return self._fair(self.figures.rmse_percent, "regression", FAILED_RMSE_PERCENT)

    def _fair(self, figure: float | None, kind: TaskType, failed: float) -> float | None:
        if self.task_type != kind:
            return None
        return figure if self.success else failed


def grade_of(grading: Grading, figures: Figures) -> Grade:
    """Put figures on the scale of a task.

    For a file that the caller could not read: `grade_of(grading, Figures("no_submission"))`.

    Raises:
        TaskError: the grading has no such scale.
    """
    metric, zero = METRICS[grading.metric], zero_point(grading)
    value = zero if figures.value is None else figures.value
    return Grade(
        task_type=grading.task_type,
        metric=metric.name,
        direction=metric.direction,
        score=min(1.0, max(0.0, (value - zero) / (metric.best - zero))),
        fair_value=value,
        figures=figures,
    )


def relative_performance_gap(value: float | None, baseline: float, best: float) -> float:
    """Return DSBench's measure of one task, `max(0, (value - baseline) / (best - baseline))`.

    It has no upper end; a value that is missing or NaN counts 0. `baseline` and `best` are the
    published ones, on the scale of `value`. The mean over all tasks is what DSBench reports
    (arXiv 2409.07703).

    >>> relative_performance_gap(0.75, baseline=0.5, best=1.0)
    0.5
    """
    if value is None or math.isnan(value):
        return 0.0
    return max(0.0, (value - baseline) / (best - baseline))
