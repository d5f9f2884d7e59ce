"""One competition's files become a task and the rule that judges it."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.baseline import naive_baseline
from mappa_envs.outcomes.grading import Grading, check_grading
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.tasks.csv_columns import read_columns, read_header
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
        TaskError: a file is damaged or lacks a column, `test.csv` has the answers, `test.csv` or
            `sample_submission.csv` has other ids than they have, the sample has other columns than
            are due, or the answers cannot be used.
    """
    truth = read_columns(files["test_answer.csv"], (known.id_column, *known.targets))
    answers = read_columns(files["train.csv"], known.targets)
    _check_test(files["test.csv"], known, truth[known.id_column])
    _check_sample(files["sample_submission.csv"], known, truth[known.id_column])
    rule: dict[str, Any] = {
        "task_type": known.task_type,
        "metric": known.metric,
        "id_column": known.id_column,
        "targets": known.targets,
        "truth_csv": _csv_of(truth),
        "labels": labels_of(known, _distinct(answers, truth, known.targets)),
    }
    try:
        baseline = naive_baseline(Grading(**rule), answers)
        grading = Grading(**rule, baseline=baseline)
        check_grading(grading)
    except TaskError as error:
        raise TaskError(f"competition {name!r}: {error}") from None
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


def labels_of(known: Competition, cells: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a competition from the cells of its targets, in order.

    Numbers are in their order, which is that of an ordinal metric, and other labels in that of the
    alphabet, so that False comes before True. A metric of scores has labels only where the answers
    are not 0 and 1.

    Raises:
        TaskError: a metric of scores has more than two.
    """
    content = METRICS[known.metric].content
    if content in ("numbers", "text"):
        return ()
    labels = _sorted({_plain(cell) for cell in cells if cell.strip()})
    if content in ("labels", "ranking"):
        return labels
    if set(labels) <= _ZERO_AND_ONE:
        return ()
    if len(labels) != 2:
        raise TaskError(f"a target judged by {known.metric} has the labels {labels!r:.80}, not two")
    return labels


def _csv_of(columns: Mapping[str, Sequence[str]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _distinct(
    answers: Mapping[str, Sequence[str]],
    truth: Mapping[str, Sequence[str]],
    targets: Iterable[str],
) -> list[str]:
    """Return the cells of the targets, those of one column each once."""
    return [cell for t in targets for table in (answers, truth) for cell in dict.fromkeys(table[t])]


def _check_test(path: Path, known: Competition, ids: Collection[str]) -> None:
    header = read_header(path)
    for target in known.targets:
        if target in header:
            raise TaskError(f"{path}: has the target column {target!r}; take it out")
    asked = (known.id_column,) if known.id_column in header else ()
    for column in read_columns(path, asked).values():
        _check_ids(path, known.id_column, column, ids)


def _check_sample(path: Path, known: Competition, ids: Collection[str]) -> None:
    """Check that a submission of the sample's form would not be turned down for its form."""
    due = (known.id_column, *known.targets)
    sample = read_columns(path, due)
    for name in read_header(path):
        if name not in due:
            raise TaskError(
                f"{path}: has a column {name!r}, with which a submission is not valid; leave "
                f"{', '.join(due)[:200]}"
            )
    _check_ids(path, known.id_column, sample[known.id_column], ids)


def _check_ids(path: Path, column: str, own: Collection[str], ids: Collection[str]) -> None:
    if differing := len(set(own) ^ set(ids)):
        raise TaskError(
            f"{path}: of the ids in {column}, {differing} cannot be found both in it and in the "
            "answers; take both from one copy of DSBench"
        )


def _plain(cell: str) -> str:
    """Return a label without the zeros of a number: 1.0 is 1."""
    number, point, rest = cell.partition(".")
    return number if point and number.lstrip("-").isdigit() and not rest.strip("0") else cell


def _sorted(labels: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels))
