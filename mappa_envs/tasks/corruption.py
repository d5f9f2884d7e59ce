"""What goes wrong with tables, on purpose: pure functions of tables, a strength and a generator.

Each takes tables and gives new ones; what it was given stays as it was. `strength` is from 0 to 1.
None of them makes a right answer wrong: what changes targets changes them in `train` and in the
truth alike, and rows are only added to `train`.

A corruption's rates are its own: at full strength one cell in ten is empty or misspelt, every
second number of one column is in another unit, one row in five comes twice, one column of `test`
is off by its standard deviation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from mappa_envs.tasks.frames import Tables, each_cell, with_columns
from mappa_envs.tasks.seeding import generator
from mappa_envs.tasks.source import no_such

STRENGTHS = (0.0, 0.2, 0.5, 1.0)
"""The strength of each level; level 0 leaves tables as they are."""
MOST_CELLS = 0.1
"""The share of cells that is emptied or misspelt at full strength."""
MOST_OTHER_UNITS = 0.5
MOST_DUPLICATES = 0.2
MOST_DRIFT = 1.0
"""In standard deviations of the training column."""
_MANY = 100
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


Corruption = Callable[[Tables, float, np.random.Generator], Tables]


def corrupt(tables: Tables, names: Sequence[str], level: int, *key: object) -> Tables:
    """Apply corruptions in the order of their names.

    Args:
        tables: What to begin with.
        names: Names in `CORRUPTIONS`.
        level: A position in `STRENGTHS`; at level 0 nothing happens.
        key: Seeds each corruption together with its name, whatever the others are.

    Raises:
        TaskError: there is no corruption of a name.
    """
    for name in names:
        if name not in CORRUPTIONS:
            raise no_such("corruption", name, CORRUPTIONS)
        if level > 0:
            tables = CORRUPTIONS[name](tables, STRENGTHS[level], generator(*key, name))
    return tables


def missing_cells(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Empty feature cells here and there."""

    def emptied(frame: pd.DataFrame) -> pd.DataFrame:
        chosen = rng.random((len(frame), len(tables.features))) < MOST_CELLS * strength
        mask = pd.DataFrame(chosen, frame.index, tables.features)
        return with_columns(frame, {n: frame[n].mask(mask[n]) for n in tables.features})

    return replace(tables, train=emptied(tables.train), test=emptied(tables.test))


def category_typos(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Misspell text: a letter lost, doubled or swapped, other cases, a blank at the end."""

    def misspelt(value: object) -> object:
        wrong = rng.random() < MOST_CELLS * strength
        return _misspell(value, rng) if wrong and isinstance(value, str) and value else value

    return each_cell(tables, tables.categories, misspelt)


def mixed_dates(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Write dates in several ways, each of them unambiguous; times of day are kept."""

    def rewritten(value: object) -> object:
        other = rng.random() < strength
        way = int(rng.integers(len(_DATE_FORMATS)))
        return _rewrite_date(value, way) if other and isinstance(value, str) else value

    return each_cell(tables, [n for n in tables.dates if n in tables.features], rewritten)


def mixed_units(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Write some numbers of one column in another unit: 3750 as 3.75k, or 17.9 as 17900m.

    Columns whose median is 100 or more have thousands (k), others thousandths (m). Only a column of
    positive numbers is chosen; where there is none, nothing changes.
    """
    positive = [name for name in tables.measures if _is_positive(tables, name)]
    if not positive:
        return tables
    chosen = positive[int(rng.integers(len(positive)))]
    factor, mark = (0.001, "k") if tables.train[chosen].median() >= _MANY else (1000, "m")

    def rewritten(value: Any) -> object:
        other = rng.random() < MOST_OTHER_UNITS * strength
        if pd.isna(value):
            return np.nan
        return f"{value * factor:.10g}{mark}" if other else f"{value}"

    return each_cell(tables, [chosen], rewritten)


def duplicate_rows(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Repeat rows of `train` at random places, with their ids."""
    rows = len(tables.train)
    twice = rng.choice(rows, size=round(MOST_DUPLICATES * strength * rows), replace=False)
    order = rng.permutation(np.concatenate([np.arange(rows), twice]))
    return replace(tables, train=tables.train.iloc[order].reset_index(drop=True))


def shuffled_ids(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Put the rows of `test` out of the order of their ids, which may have leading zeros."""
    del strength  # rows are out of order, or they are not
    width = 1 + max(len(str(value)) for value in tables.train[tables.id_column])
    order = rng.permutation(len(tables.test))

    def with_zeros(frame: pd.DataFrame) -> pd.DataFrame:
        ids = frame[tables.id_column].map(lambda value: f"{value:0>{width}}")
        return with_columns(frame, {tables.id_column: ids})

    return replace(
        tables,
        train=with_zeros(tables.train),
        test=with_zeros(tables.test.iloc[order].reset_index(drop=True)),
        truth=with_zeros(tables.truth.iloc[order].reset_index(drop=True)),
    )


def drift(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Shift one column of `test`, as an instrument does that was set up anew.

    The shift is the strength times the standard deviation in `train`. Where no column holds
    measures, nothing changes.
    """
    if not tables.measures:
        return tables
    name = tables.measures[int(rng.integers(len(tables.measures)))]
    sign = 1 if rng.random() < 0.5 else -1
    shift = sign * MOST_DRIFT * strength * float(tables.train[name].std())
    moved = (tables.test[name] + shift).map(_six_digits)
    return replace(tables, test=with_columns(tables.test, {name: moved}))


def leak_column(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Add a column that repeats the first target in `train`, and is empty in `test`."""
    del strength
    target = tables.targets[0]
    name = f"checked_{target}"
    place = int(rng.integers(1, len(tables.features) + 1))
    train, test = tables.train.copy(), tables.test.copy()
    train.insert(place, name, train[target])
    test.insert(place, name, np.nan)
    return replace(tables, train=train, test=test)


def rename_columns(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Give the features names without meaning and another order."""
    del strength
    kept = (tables.id_column, *tables.targets)
    old = [name for name in tables.train.columns if name not in kept]
    order = [old[int(place)] for place in rng.permutation(len(old))]
    new = {name: f"x{number:02d}" for number, name in enumerate(order, start=1)}

    def renamed(frame: pd.DataFrame) -> pd.DataFrame:
        columns = [name for name in order if name in frame.columns]
        rest = [name for name in tables.targets if name in frame.columns]
        return frame[[tables.id_column, *columns, *rest]].rename(columns=new)

    return replace(
        tables,
        train=renamed(tables.train),
        test=renamed(tables.test),
        dates=tuple(new.get(name, name) for name in tables.dates),
        names={new[name]: tables.names.get(name, name) for name in order},
    )


def permute_categories(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Exchange the values of each text column among themselves, alike in `train` and `test`."""
    del strength
    for name in tables.categories:
        values = sorted({*tables.train[name].dropna(), *tables.test[name].dropna()})
        other = dict(zip(values, _derangement(values, rng), strict=True))
        tables = each_cell(tables, [name], functools.partial(_looked_up, other))
    return tables


def relabel_target(tables: Tables, strength: float, rng: np.random.Generator) -> Tables:
    """Give answers that nobody can know by heart: other labels, or numbers on another scale.

    Labels are exchanged among themselves; an order of them is turned round. Numbers are multiplied
    by a number from 1.2 to 4.8, one for each target.
    """
    del strength
    changes: dict[str, Callable[[Any], Any]] = {}
    for name in tables.targets:
        if tables.labels:
            new = tables.labels[::-1] if tables.ordinal else _derangement(tables.labels, rng)
            other = dict(zip(tables.labels, new, strict=True))
            changes[name] = functools.partial(_looked_up, other)
        else:
            changes[name] = functools.partial(_times, int(rng.integers(12, 49)) / 10)

    def changed(frame: pd.DataFrame) -> pd.DataFrame:
        return with_columns(frame, {name: frame[name].map(way) for name, way in changes.items()})

    return replace(tables, train=changed(tables.train), truth=changed(tables.truth))


def _misspell(text: str, rng: np.random.Generator) -> str:
    way, place = int(rng.integers(5)), int(rng.integers(len(text)))
    before, letter, after = text[:place], text[place], text[place + 1 :]
    if way == 0 and len(text) > 1:
        return before + after
    if way == 1 and after:
        return before + after[0] + letter + after[1:]
    if way == 2:
        return text.upper() if text != text.upper() else text.lower()
    return text + " " if way == 3 else before + letter + letter + after


def _iso(day: pd.Timestamp) -> str:
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}"


_DATE_FORMATS: tuple[Callable[[pd.Timestamp], str], ...] = (
    lambda day: f"{day.day} {_MONTHS[day.month - 1]} {day.year}",
    lambda day: f"{_MONTHS[day.month - 1]} {day.day}, {day.year}",
    lambda day: f"{day.year:04d}{day.month:02d}{day.day:02d}",
)


def _rewrite_date(text: str, way: int) -> str:
    day, mark, time = text.partition("T")
    written = _DATE_FORMATS[way](pd.Timestamp(day))
    return f"{written} {time}" if mark else written


def _is_positive(tables: Tables, name: str) -> bool:
    both = (tables.train[name], tables.test[name])
    return all(bool((column.dropna() > 0).all()) for column in both)


def _derangement(values: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return the values in another order, with none at its own place if there are two or more."""
    turned = [values[int(place)] for place in rng.permutation(len(values))]
    following = dict(zip(turned, turned[1:] + turned[:1], strict=True))
    return [following[value] for value in values]


def _looked_up(table: Mapping[Any, Any], value: Any) -> Any:
    return table.get(value, value)


def _times(factor: float, value: float) -> float:
    return _six_digits(value * factor)


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


CORRUPTIONS: Mapping[str, Corruption] = MappingProxyType(
    {
        made.__name__: made
        for made in (
            relabel_target,
            rename_columns,
            permute_categories,
            missing_cells,
            category_typos,
            mixed_dates,
            mixed_units,
            duplicate_rows,
            shuffled_ids,
            drift,
            leak_column,
        )
    }
)
"""Every corruption by its name."""
