"""A table of an installed package becomes the files of a task and the rule that judges it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.baseline import naive_baseline
from mappa_envs.outcomes.grading import Grading, check_grading
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.tasks.catalogue import EXTRA, TableSpec
from mappa_envs.tasks.corruption import corrupt
from mappa_envs.tasks.frames import Tables, with_columns
from mappa_envs.tasks.seeding import generator
from mappa_envs.tasks.table_prompts import Described, prompt_of
from mappa_envs.types import Split, Task

MAX_ROWS = 2000
"""Of a table, more are left out, so that a model is fitted in seconds."""
TEST_SHARE = 0.3
ID_COLUMN = "row_id"
_FIRST_ID = 1000
_DECIMALS = 10
"""Of the tables that scikit-learn scales: their last bits depend on its version."""


def make_task(name: str, spec: TableSpec, split: Split, level: int, seed: int) -> Task:
    """Return the task of one table; the same arguments give the same bytes in every process.

    Raises:
        TaskError: the package is not installed, or its table is not as the entry says.
    """
    clean = split_table(name, spec, read_table(name, spec), seed)
    tables = corrupt(clean, spec.corruptions, level, seed, name)
    grading = _grading(name, spec, tables)
    described = Described(
        about=spec.about,
        columns={tables.names.get(column, column): column for column in tables.train.columns},
        texts=spec.columns,
        train_only=tuple(c for c in tables.train.columns if c not in _test_columns(tables)),
        rows=(len(tables.train), len(tables.test)),
        messy=level > 0,
    )
    metadata = {
        "task_type": spec.task_type,
        "metric": spec.metric,
        "direction": METRICS[spec.metric].direction,
        "source": spec.source,
        "licence": spec.licence,
        "package": spec.package,
        "level": level,
        "corruptions": list(spec.corruptions) if level else [],
    }
    files = {
        "train.csv": as_csv(tables.train),
        "test.csv": as_csv(tables.test),
        "sample_submission.csv": as_csv(_sample(tables, grading)),
    }
    return Task(
        id=name,
        prompt=prompt_of(described, grading),
        answers=(),
        metadata=metadata,
        split=split,
        files=files,
        grading=grading,
    )


def read_table(name: str, spec: TableSpec) -> pd.DataFrame:
    """Read the table of an entry, with the columns it uses and no row without a target.

    Raises:
        TaskError: the package is not installed, or its table is not as the entry says.
    """
    table = _load(spec) if spec.loader else _read(package_file(name, spec))
    named = (*spec.keep, *spec.drop, *spec.targets, *spec.train_only, *spec.dates, *spec.columns)
    missing = [column for column in named if column not in table.columns]
    if missing:
        raise TaskError(
            f"task {name!r}: the table of {spec.package} has no column {missing[0]!r}; another "
            f"version of the package may have it: pip install '{EXTRA}'"
        )
    table = table[list(spec.keep)] if spec.keep else table.drop(columns=list(spec.drop))
    return table.dropna(subset=list(spec.targets)).reset_index(drop=True)


def package_file(name: str, spec: TableSpec) -> Path:
    """Return where the table of an entry is, without importing its package.

    Raises:
        TaskError: the package is not installed, or lacks the file.
    """
    found = importlib.util.find_spec(spec.module)
    folders = list(found.submodule_search_locations or ()) if found else []
    for folder in folders:
        if (Path(folder) / spec.file).is_file():
            return Path(folder) / spec.file
    raise TaskError(
        f"task {name!r}: needs {spec.file or spec.loader} of the package {spec.package}, which is "
        f"not installed or has no such file; pip install '{EXTRA}'"
    )


def split_table(name: str, spec: TableSpec, table: pd.DataFrame, seed: int) -> Tables:
    """Return training and test rows, drawn by class where there are classes.

    Rows beyond `MAX_ROWS` are left out, as are classes with a single row. Each row gets an id that
    says nothing of its place in the table; `test` is in the order of its ids, `train` is not.
    """
    rng = generator(seed, name, "split")
    labels = labels_of(spec, table)
    if labels:
        target = spec.targets[0]
        table = with_columns(table, {target: table[target].map(_as_text)})
    table = table.iloc[rng.permutation(len(table))[:MAX_ROWS]].reset_index(drop=True)
    if labels:
        counts = table[spec.targets[0]].value_counts()
        table = table[table[spec.targets[0]].map(counts) > 1].reset_index(drop=True)
        labels = tuple(label for label in labels if label in counts[counts > 1])
    held = _held_out(table[spec.targets[0]] if labels else None, len(table), rng)
    ids = rng.permutation(len(table)) + _FIRST_ID
    table.insert(0, ID_COLUMN, ids)
    last = [column for column in table.columns if column not in spec.targets] + [*spec.targets]
    train = table[~held][last].reset_index(drop=True)
    rest = table[held].sort_values(ID_COLUMN).reset_index(drop=True)
    return Tables(
        train=train,
        test=rest.drop(columns=[*spec.targets, *spec.train_only]),
        truth=rest[[ID_COLUMN, *spec.targets]],
        id_column=ID_COLUMN,
        targets=spec.targets,
        labels=labels,
        ordinal=spec.metric == "quadratic_weighted_kappa",
        dates=spec.dates,
    )


def labels_of(spec: TableSpec, table: pd.DataFrame) -> tuple[str, ...]:
    """Return the labels of a target, as text in order; none for numbers."""
    if spec.task_type == "regression":
        return ()
    found = table[spec.targets[0]].unique().tolist()
    return spec.labels or tuple(_as_text(value) for value in sorted(found))


def as_csv(table: pd.DataFrame) -> bytes:
    """Return a table as UTF-8 CSV; numbers have the shortest form that reads back the same."""
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text.encode()


def _read(path: Path) -> pd.DataFrame:
    if path.suffix == ".json":
        return pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))
    return pd.read_csv(path, dtype=str).apply(_numbers)


def _numbers(column: pd.Series) -> pd.Series:
    """Return a column of text as numbers where all of its cells are; pandas may be off by a bit."""
    for read in (int, float):
        try:
            values = [read(cell) if isinstance(cell, str) else np.nan for cell in column]
        except ValueError:
            continue
        return pd.Series(values, column.index)
    return column


def _load(spec: TableSpec) -> pd.DataFrame:
    from sklearn import datasets  # type: ignore[import-untyped]

    bunch: Any = getattr(datasets, spec.loader)(as_frame=True)
    frame: pd.DataFrame = bunch.frame.round(_DECIMALS)
    if spec.task_type == "classification":
        names = np.asarray(bunch.target_names).astype(str)
        frame = frame.assign(target=names[frame["target"].to_numpy()])
    return frame


def _as_text(value: object) -> str:
    """Return a label as text: 1.0 and 1 are "1"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _held_out(classes: pd.Series | None, rows: int, rng: np.random.Generator) -> Any:
    """Return which rows are test rows: `TEST_SHARE` of each class, one at least and never all."""
    held = np.zeros(rows, dtype=bool)
    groups = [np.arange(rows)]
    if classes is not None:
        groups = [np.flatnonzero(classes == label) for label in sorted(classes.unique())]
    for places in groups:
        count = min(max(1, round(TEST_SHARE * len(places))), len(places) - 1)
        held[rng.permutation(places)[:count]] = True
    return held


def _grading(name: str, spec: TableSpec, tables: Tables) -> Grading:
    rule: dict[str, Any] = {
        "task_type": spec.task_type,
        "metric": spec.metric,
        "id_column": tables.id_column,
        "targets": tables.targets,
        "truth_csv": as_csv(tables.truth),
        "labels": tables.labels,
    }
    answers: Mapping[str, list[str]] = {
        target: [_as_text(value) for value in tables.train[target]] for target in tables.targets
    }
    try:
        grading = Grading(**rule, baseline=naive_baseline(Grading(**rule), answers))
        check_grading(grading)
    except TaskError as error:
        raise TaskError(f"task {name!r}: {error}") from None
    return grading


def _sample(tables: Tables, grading: Grading) -> pd.DataFrame:
    """Return a submission in the right form whose values mean nothing, in the order of the ids."""
    content = METRICS[grading.metric].content
    fillers: dict[str, object] = {
        "labels": grading.labels[:1],
        "ranking": (" ".join(grading.labels[:3]),),
        "scores": (0.5,),
        "probabilities": (0.5,),
    }
    value = fillers.get(content, (0.0,))[0]  # type: ignore[index]
    table = tables.test[[tables.id_column]].sort_values(tables.id_column)
    return with_columns(table, dict.fromkeys(tables.targets, value))


def _test_columns(tables: Tables) -> set[str]:
    return {*tables.test.columns, *tables.targets}
