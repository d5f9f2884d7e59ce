"""One competition's files become a task and the rule that judges it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.baseline import naive_baseline
from mappa_envs.outcomes.grading import Grading, check_grading
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.outcomes.table_judge import form_for, read_truth
from mappa_envs.tasks.dsbench_checks import (
    Columns,
    check_sample,
    check_test,
    is_missing,
    read_answers,
    read_train,
)
from mappa_envs.tasks.table_prompts import judging
from mappa_envs.types import Task

if TYPE_CHECKING:
    from mappa_envs.tasks.dsbench_files import Competition

_ZERO_AND_ONE = frozenset({"0", "1"})


def make_task(name: str, known: Competition, files: Mapping[str, Path], text: str) -> Task:
    """Return the task of a competition.

    Args:
        name: Of the competition.
        known: What is known of it.
        files: Its files, by name, with `test_answer.csv`.
        text: What agents are told beside how they are judged; empty for a line of our own.

    Raises:
        TaskError: a file is damaged or lacks a column, one that agents see has the answers,
            `test.csv` or `sample_submission.csv` has other ids than they have or one twice, the
            sample has other columns than are due, or the answers cannot be used.
    """
    truth = read_answers(files["test_answer.csv"], known)
    answers = read_train(files["train.csv"], known, truth[known.id_column])
    check_test(files["test.csv"], known, truth[known.id_column])
    check_sample(files["sample_submission.csv"], known, truth)
    grading = _grading(known, files, truth, answers)
    intro = text.strip() or f"The tables are those of the competition {name}."
    workspace = {n: path.read_bytes() for n, path in files.items() if n != "test_answer.csv"}
    return Task(
        id=name,
        prompt=f"{intro}\n\n{judging(grading)}",
        answers=(),
        metadata={
            "task_type": known.task_type,
            "metric": known.metric,
            "direction": known.direction,
            "published_baseline": known.baseline,
            "published_best": known.best,
            "source": f"https://www.kaggle.com/competitions/{name}",
            "licence": "the rules of the competition",
        },
        split=known.split,
        files=workspace,
        grading=grading,
    )


def _grading(
    known: Competition, files: Mapping[str, Path], truth: Columns, answers: Columns
) -> Grading:
    """Return the rule; what is wrong with the values is said of the file that they are in."""
    rule = Grading(
        task_type=known.task_type,
        metric=known.metric,
        id_column=known.id_column,
        targets=known.targets,
        truth_csv=_csv_of(truth),
    )
    with _errors_of(files["test_answer.csv"]):
        rule = replace(rule, labels=labels_of(known, _distinct(answers, truth, known.targets)))
        read_truth(rule, form_for(rule))
    with _errors_of(files["train.csv"]):
        rule = replace(rule, baseline=naive_baseline(rule, answers))
    with _errors_of(files["test_answer.csv"]):
        check_grading(rule)
    return rule


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Name the file in errors about its values."""
    try:
        yield
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from None


def labels_of(known: Competition, cells: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a competition from the cells of its targets, in order.

    Numbers are in their order, which is that of an ordinal metric, and other labels in that of the
    alphabet, so that False comes before True. A cell without a value is no label. A metric of
    scores has labels only where the answers are not 0 and 1.

    Raises:
        TaskError: a metric of scores has more than two.
    """
    content = METRICS[known.metric].content
    if content in ("numbers", "text"):
        return ()
    labels = _sorted({_plain(cell) for cell in cells if not is_missing(cell)})
    if content in ("labels", "ranking"):
        return labels
    if set(labels) <= _ZERO_AND_ONE:
        return ()
    if len(labels) != 2:
        raise TaskError(f"a target judged by {known.metric} has the labels {labels!r:.80}, not two")
    return labels


def _csv_of(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _distinct(answers: Columns, truth: Columns, targets: Iterable[str]) -> list[str]:
    """Return the cells of the targets, those of one column each once."""
    return [cell for t in targets for table in (answers, truth) for cell in dict.fromkeys(table[t])]


def _plain(cell: str) -> str:
    """Return a label without the zeros of a number: 1.0 is 1."""
    number, point, rest = cell.partition(".")
    return number if point and number.lstrip("-").isdigit() and not rest.strip("0") else cell


def _sorted(labels: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels))
