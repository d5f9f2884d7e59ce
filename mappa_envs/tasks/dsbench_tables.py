"""One competition's files become a task and the rule that judges it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.baseline import naive_baseline
from mappa_envs.outcomes.grading import Grading, check_grading
from mappa_envs.outcomes.metrics import METRICS
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
        TaskError: a file lacks a column, `test.csv` has the answers or other ids than they have,
            or the answers cannot be used.
    """
    wanted = (known.id_column, *known.targets)
    truth = _columns(files["test_answer.csv"], wanted)
    answers = _columns(files["train.csv"], known.targets)
    _check_test(files["test.csv"], known, truth[known.id_column])
    rule: dict[str, Any] = {
        "task_type": known.task_type,
        "metric": known.metric,
        "id_column": known.id_column,
        "targets": known.targets,
        "truth_csv": truth.to_csv(index=False, lineterminator="\n").encode(),
        "labels": labels_of(
            known, [cell for t in known.targets for f in (answers, truth) for cell in f[t].unique()]
        ),
    }
    try:
        baseline = naive_baseline(Grading(**rule), {t: answers[t].tolist() for t in known.targets})
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


def _columns(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """Read columns as text, in the order asked for."""
    header = list(pd.read_csv(path, nrows=0).columns)
    for name in names:
        if name not in header:
            raise TaskError(
                f"{path}: there is no column {name!r}; the columns are {', '.join(header)[:200]}"
            )
    return pd.read_csv(path, usecols=list(names), dtype=str, keep_default_na=False)[list(names)]


def _check_test(path: Path, known: Competition, ids: pd.Series) -> None:
    header = list(pd.read_csv(path, nrows=0).columns)
    for target in known.targets:
        if target in header:
            raise TaskError(f"{path}: has the target column {target!r}; take it out")
    if known.id_column in header:
        asked = set(_columns(path, (known.id_column,))[known.id_column])
        if asked != set(ids):
            raise TaskError(
                f"{path}: {len(asked ^ set(ids))} ids of {known.id_column} are not both in it and "
                "in the answers; take both from one copy of DSBench"
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
