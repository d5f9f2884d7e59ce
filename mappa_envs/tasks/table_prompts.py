"""What a team is told about a task of tables, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_envs.outcomes.grading import Grading
from mappa_envs.outcomes.metrics import METRICS

TITLES: Mapping[str, str] = {
    "roc_auc": "area under the ROC curve",
    "normalized_gini": "normalised Gini coefficient",
    "accuracy": "accuracy",
    "f1": "F1 of the label {positive}",
    "f1_macro": "F1, the mean over the labels",
    "f1_micro": "F1 over all labels together",
    "quadratic_weighted_kappa": "quadratic weighted kappa",
    "map_at_3": "mean average precision at 3",
    "log_loss": "log loss",
    "mse": "mean squared error",
    "rmse": "root mean squared error",
    "mcrmse": "root mean squared error, the mean over the columns",
    "rmsle": "root mean squared logarithmic error",
    "mcrmsle": "root mean squared logarithmic error, the mean over the columns",
    "mae": "mean absolute error",
    "medae": "median absolute error",
    "smape": "symmetric mean absolute percentage error",
    "r2": "coefficient of determination (R squared)",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's rank correlation",
    "jaccard": "Jaccard similarity of the words",
}
"""What each metric is called in a prompt."""
_MOST_LABELS = 30


@dataclass(frozen=True, slots=True)
class Described:
    """What is said about the tables of a task."""

    about: str
    columns: Mapping[str, str]
    """The columns of `train.csv`: what each was called at first, and what it is called now."""
    texts: Mapping[str, str]
    """What columns hold, by the first name."""
    train_only: tuple[str, ...]
    rows: tuple[int, int]
    """Of `train.csv` and of `test.csv`."""
    messy: bool
    """Whether the tables have faults."""


def prompt_of(table: Described, grading: Grading) -> str:
    """Return the text of a task: what the table is, what is asked, and how it is judged."""
    train, test = table.rows
    parts = [
        table.about.strip(),
        f"For each row of test.csv, predict {_and(grading.targets)}.",
        "\n".join(
            [
                "Files:",
                f"- train.csv: {train} rows, with the answers",
                f"- test.csv: {test} rows, without them",
                "- sample_submission.csv: the form of the submission, with made-up values",
            ]
        ),
        "\n".join(["Columns:", *_columns(table, grading)]),
    ]
    if table.train_only:
        parts.append(f"Only in train.csv: {', '.join(table.train_only)}.")
    if table.messy:
        parts.append("The tables are as they came in; nobody has cleaned them.")
    return "\n\n".join([*parts, judging(grading)])


def judging(grading: Grading) -> str:
    """Return how a submission is judged and what it must look like."""
    metric = METRICS[grading.metric]
    positive = grading.labels[1] if len(grading.labels) == 2 else "1"
    title = TITLES[grading.metric].format(positive=positive)
    header = ",".join((grading.id_column, *grading.targets))
    return (
        f"Metric: {title}; {metric.direction} is better.\n\n"
        f"Submission: submission.csv with the header {header} and one row for each id of test.csv, "
        f"in any order. {_cells(grading, positive)}"
    )


def _columns(table: Described, grading: Grading) -> list[str]:
    lines = []
    for first, present in table.columns.items():
        text = table.texts.get(first, "" if first == present else first)
        if present == grading.id_column:
            text = "names the row, and says nothing else"
        mark = " (to be predicted)" if present in grading.targets else ""
        lines.append(f"- {present}{': ' if text else ''}{text}{mark}")
    return lines


def _cells(grading: Grading, positive: str) -> str:
    """Return what a target's cell must hold."""
    content = METRICS[grading.metric].content
    shown = ", ".join(grading.labels[:_MOST_LABELS])
    return {
        "labels": f"A cell is one of the labels {shown}.",
        "ranking": f"A cell is up to three of the labels {shown}, the likeliest first, with blanks "
        "between them.",
        "scores": f"A cell is a number, the higher the likelier {positive} is.",
        "probabilities": f"A cell is the probability of {positive}, from 0 to 1."
        if len(grading.targets) == 1
        else "A cell is the probability of its column, from 0 to 1.",
        "numbers": "A cell is a number.",
        "text": "A cell is a piece of text.",
    }[content]


def _and(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
