"""What the files of one competition must agree on, so that they give no answer away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.tasks.csv_columns import read_columns, read_header

if TYPE_CHECKING:
    from mappa_envs.tasks.dsbench_files import Competition

Columns = Mapping[str, Sequence[str]]
_MISSING = frozenset({"", "nan", "na", "n/a", "<na>", "null"})
"""What writers of tables put where there is no value, in small letters."""


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing(" NaN"), is_missing("0")
    (True, False)
    """
    return cell.strip().lower() in _MISSING


def read_answers(path: Path, known: Competition) -> dict[str, list[str]]:
    """Return ids and targets of `test_answer.csv`.

    Raises:
        TaskError: the file is damaged, has an id twice, or has no value in a cell of a target.
    """
    truth = read_columns(path, (known.id_column, *known.targets))
    _check_unique(path, known.id_column, truth[known.id_column])
    is_text = METRICS[known.metric].content == "text"
    for target in known.targets:
        for name, cell in zip(truth[known.id_column], truth[target], strict=True):
            if not cell.strip() if is_text else is_missing(cell):
                raise TaskError(
                    f"{path}: the answer {target!r} of the id {name!r:.80} is {cell!r}, which is "
                    "no value; give the answer, or take the row out of all files"
                )
    return truth


def read_train(path: Path, known: Competition, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the targets of `train.csv`.

    Raises:
        TaskError: the file is damaged, has no value at all in a target, or has rows whose ids are
            among those of the answers: with their labels, as Kaggle's own file has.
    """
    columns = (known.id_column,) if known.id_column in read_header(path) else ()
    train = read_columns(path, (*columns, *known.targets))
    for target in known.targets:
        if all(is_missing(cell) for cell in train[target]):
            raise TaskError(
                f"{path}: no row has a value in the target column {target!r}; take the file anew "
                "from its source"
            )
    asked = set(ids)
    shared = [name for name in train.pop(known.id_column, []) if name in asked]
    if shared:
        raise TaskError(
            f"{path}: {_rows(shared)} an id of the answers, e.g. {shared[0]!r:.80}, so that it "
            "holds test rows with their labels; take DSBench's train.csv, not Kaggle's"
        )
    return train


def check_test(path: Path, known: Competition, ids: Sequence[str]) -> None:
    """Check that `test.csv` has no target, and the rows of the answers, each once.

    Raises:
        TaskError: it is damaged or does not.
    """
    header = read_header(path)
    for target in known.targets:
        if target in header:
            raise TaskError(f"{path}: has the target column {target!r}; take it out")
    if known.id_column in header:
        own = read_columns(path, (known.id_column,))[known.id_column]
        _check_unique(path, known.id_column, own)
        _check_ids(path, known.id_column, own, ids)
        return
    rows = len(read_columns(path, header[:1])[header[0]])
    if rows != len(ids):
        raise TaskError(
            f"{path}: has {rows} rows and no column {known.id_column!r}, and there are {len(ids)} "
            "answers; take both from one copy of DSBench"
        )


def check_sample(path: Path, known: Competition, truth: Columns) -> None:
    """Check that a submission of the sample's form would be valid, and that it gives nothing away.

    Raises:
        TaskError: it is damaged, has other columns or ids than are due, has an id twice, or its
            values are the answers.
    """
    due = (known.id_column, *known.targets)
    sample = read_columns(path, due)
    for name in read_header(path):
        if name not in due:
            raise TaskError(
                f"{path}: has a column {name!r}, with which a submission is not valid; leave "
                f"{', '.join(due)[:200]}"
            )
    _check_unique(path, known.id_column, sample[known.id_column])
    _check_ids(path, known.id_column, sample[known.id_column], truth[known.id_column])
    if _by_id(sample, due) == _by_id(truth, due):
        raise TaskError(
            f"{path}: its values are the answers of all {len(truth[known.id_column])} ids; put "
            "made-up values in their place"
        )


def _check_unique(path: Path, column: str, ids: Sequence[str]) -> None:
    name, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise TaskError(
            f"{path}: the id {name!r:.80} is {count} times in {column}; keep one row of it"
        )


def _check_ids(path: Path, column: str, own: Sequence[str], ids: Sequence[str]) -> None:
    if differing := len(set(own) ^ set(ids)):
        raise TaskError(
            f"{path}: of the ids in {column}, {differing} cannot be found both in it and in the "
            "answers; take both from one copy of DSBench"
        )


def _rows(shared: Sequence[str]) -> str:
    return "1 row has" if len(shared) == 1 else f"{len(shared)} rows have"


def _by_id(table: Columns, columns: Sequence[str]) -> dict[str, list[float | str]]:
    """Return the values of each id; numbers are compared as numbers."""
    ids, *targets = (table[name] for name in columns)
    cells = zip(*targets, strict=True)
    return {name: [_value(cell) for cell in row] for name, row in zip(ids, cells, strict=True)}


def _value(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell.strip()
