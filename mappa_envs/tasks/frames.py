"""The tables of one task, on their way to becoming files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd  # type: ignore[import-untyped]

_FEW_VALUES = 20
"""A column of numbers with no more values than this may be one of codes."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Training rows, test rows, and what is right for the test rows."""

    train: pd.DataFrame
    """Ids, features and targets."""
    test: pd.DataFrame
    """Ids and features."""
    truth: pd.DataFrame
    """Ids and targets of `test`, in its order."""
    id_column: str
    targets: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """The labels of a target of labels, in order; empty for numbers."""
    ordinal: bool = False
    """Whether the order of the labels means something."""
    dates: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """What renamed columns were called before, by their new names."""

    @property
    def features(self) -> list[str]:
        """The columns of `test` but the id."""
        return [name for name in self.test.columns if name != self.id_column]

    @property
    def categories(self) -> list[str]:
        """The features that hold text and are no dates."""
        return [
            name
            for name in self.features
            if name not in self.dates and not pd.api.types.is_numeric_dtype(self.test[name])
        ]

    @property
    def measures(self) -> list[str]:
        """The features that hold numbers, too many different ones to be codes."""
        return [
            name
            for name in self.features
            if pd.api.types.is_numeric_dtype(self.train[name])
            and pd.api.types.is_numeric_dtype(self.test[name])
            and self.train[name].nunique() > _FEW_VALUES
        ]


def each_cell(tables: Tables, columns: Sequence[str], change: Callable[[object], object]) -> Tables:
    """Return tables in which each cell of some columns of `train` and `test` is changed."""

    def changed(frame: pd.DataFrame) -> pd.DataFrame:
        new = {n: pd.Series([change(v) for v in frame[n]], frame.index, object) for n in columns}
        return with_columns(frame, new)

    return replace(tables, train=changed(tables.train), test=changed(tables.test))


def with_columns(frame: pd.DataFrame, columns: Mapping[str, object]) -> pd.DataFrame:
    """Return a frame with some columns set, whatever their names are."""
    changed = frame.copy()
    for name, values in columns.items():
        changed[name] = values
    return changed
