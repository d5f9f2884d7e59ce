"""The outcome of a task of tables: the grade of the file that the team delivers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.grade import Figures, Grade, grade_of, relative_performance_gap
from mappa_envs.outcomes.protocol import Workspace
from mappa_envs.outcomes.table_grader import TableGrader
from mappa_envs.types import Outcome, Task

SUBMISSION: Final = "submission.csv"
COMPARABLE: Final = (
    "success",
    "decided",
    "coverage",
    "accuracy",
    "f1",
    "rmse_percent",
    "fair_accuracy",
    "fair_f1",
    "fair_rmse_percent",
    "performance_gap",
)
"""The details that mean the same for every task, whatever its metric, so they may be averaged."""


class SubmissionScorer:
    """Grades `submission.csv` of the workspace; what the team says is not looked at."""

    def __init__(self) -> None:
        self._grader = TableGrader()

    def score(self, task: Task, text: str, workspace: Workspace) -> Outcome:
        """Judge the file that is there when the last role hands off.

        Raises:
            TaskError: the task has no rule for submissions.
            SandboxError: the sandbox is dead.
            MappaEnvError: the process that grades cannot start.
        """
        if task.grading is None:
            raise TaskError(f"task {task.id!r} cannot be judged by {SUBMISSION}: it has no grading")
        grade = self._grade(task, workspace)
        return Outcome(
            score=grade.score,
            verdict=grade.verdict,
            reason=_reason(grade),
            answer=None,
            details={
                **_details(grade),
                "performance_gap": _gap(task, grade),
                "author": _author(workspace),
                "comparable": list(COMPARABLE),
            },
        )

    def close(self) -> None:
        """End the grading process; a second call does nothing."""
        self._grader.close()

    def _grade(self, task: Task, workspace: Workspace) -> Grade:
        assert task.grading is not None
        sizes = {file.path: file.size for file in workspace.files}
        if SUBMISSION in workspace.folders:
            return grade_of(task.grading, Figures("not_a_file"))
        if SUBMISSION not in sizes:
            return grade_of(task.grading, Figures("no_submission"))
        if sizes[SUBMISSION] > self._grader.max_bytes:
            return grade_of(task.grading, Figures("too_large"))
        try:
            content = workspace.read_file(SUBMISSION, self._grader.max_bytes)
        except (FileNotFoundError, ValueError):
            return grade_of(task.grading, Figures("not_a_file"))
        return self._grader.grade(task.grading, content)


def _reason(grade: Grade) -> str:
    if not grade.success:
        return f"{SUBMISSION}: {grade.verdict}"
    return f"{grade.metric} is {grade.figures.value:.6g}"


def _author(workspace: Workspace) -> str | None:
    """Return who wrote the submission last; it counts whoever that was."""
    return next((file.author for file in workspace.files if file.path == SUBMISSION), None)


def _gap(task: Task, grade: Grade) -> float | None:
    """Return DSBench's measure of a task; None where it has not published what that takes."""
    baseline, best = (task.metadata.get(f"published_{name}") for name in ("baseline", "best"))
    if baseline is None or best is None:
        return None
    return relative_performance_gap(grade.figures.value, baseline, best)


def _details(grade: Grade) -> dict[str, object]:
    """Return what the grade says, as plain data."""
    return {
        "task_type": grade.task_type,
        "metric": grade.metric,
        "direction": grade.direction,
        "success": grade.success,
        "decided": grade.decided,
        **{name: value for name, value in asdict(grade.figures).items() if name != "verdict"},
        "fair_value": grade.fair_value,
        "fair_accuracy": grade.fair_accuracy,
        "fair_f1": grade.fair_f1,
        "fair_rmse_percent": grade.fair_rmse_percent,
    }
