"""Check a submission's bytes against the form that is due; runs where hostile bytes do no harm.

Nothing here knows the right answers: a verdict depends on the submission, the ids that were asked
for, and the rule, so it can tell nothing about the truth. Rows are joined on the text of their ids;
their order, and that of the columns, never matters. The probe of tables brings this module along
into the sandbox, so it imports nothing but numpy and the two modules that come with it.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_envs.outcomes.metrics import GUESSES, Array, Content
from mappa_envs.outcomes.verdicts import VERDICTS, Verdict

_OTHER_SEPARATORS = ";\t|"
_HEADER_CHARACTERS = 1 << 16
_MORE_ROWS = 1000
_NUMBER_CHARACTERS = 400
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_DTYPES: dict[Content, Any] = {"labels": np.int64, "ranking": np.int64, "text": object}


class Rejected(ValueError):
    """Why a submission, a row or a cell cannot be judged."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Form:
    """What a submission must hold."""

    id_column: str
    targets: tuple[str, ...]
    ids: tuple[str, ...]
    """The ids that are asked for, each once, in the order in which values are returned."""
    content: Content
    labels: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf


@dataclass(frozen=True, slots=True)
class Checked:
    """A submission that was looked at."""

    verdict: Verdict
    coverage: float = 0.0
    """The share of the ids with one row and nothing but usable values."""
    values: Array | None = None
    """One row per id in the form's order, one column per target; a ranking has its three labels
    as columns. Labels are positions in the form's labels. None where the verdict is not "valid".
    """


def check(submission: bytes, form: Form) -> Checked:
    """Read a submission; whatever the bytes are, the answer is a verdict."""
    try:
        return check_rows(rows_for(form, submission), form)
    except Rejected as rejected:
        return Checked(rejected.verdict)


def rows_for(form: Form, submission: bytes) -> list[list[str]]:
    """Return the rows of a submission as text: the id, then the targets in the form's order.

    Raises:
        Rejected: it is no table with the columns that are due.
    """
    return read_rows(submission, (form.id_column, *form.targets), 2 * len(form.ids) + _MORE_ROWS)


def check_rows(rows: Sequence[list[str]], form: Form) -> Checked:
    """Check the rows that `rows_for` returns."""
    counts = Counter(row[0] for row in rows)
    own = {row[0]: row[1:] for row in rows if counts[row[0]] == 1}
    asked = (own[name] for name in form.ids if name in own)
    values, problems = _read_all(asked, form, cell_reader(form))
    problems |= _id_problems(counts, form.ids)
    coverage = len(values) / len(form.ids)
    if problems:
        return Checked(min(problems, key=VERDICTS.index), coverage)
    return Checked("valid", coverage, _as_array(values, form))


def read_rows(content: bytes, columns: Sequence[str], most: int | None = None) -> list[list[str]]:
    """Return the rows of a CSV file as text, with the columns in the order asked for.

    Args:
        content: UTF-8, with or without a byte order mark; any line ends; blank lines are skipped.
        columns: Exactly the columns that must be there, in any order.
        most: How many rows are read at most; None reads them all.

    Raises:
        Rejected: it is no such table.
    """
    if b"\0" in content:
        raise Rejected("not_text")
    try:
        lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        start = lines.read(_HEADER_CHARACTERS)
        _check_separator(start, columns)
        lines.seek(0)
        table = (row for row in csv.reader(lines, strict=True) if not _is_blank(row))
        header = next(table, None)
        if header is None:
            raise Rejected("empty")
        places = _places(header, columns)
        rows = list(itertools.islice(table, most))
    except UnicodeDecodeError:
        raise Rejected("not_text") from None
    except csv.Error:
        raise Rejected("not_csv") from None
    if not rows:
        raise Rejected("no_rows")
    if any(len(row) != len(header) for row in rows):
        raise Rejected("ragged_rows")
    return [[row[place] for place in places] for row in rows]


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _check_separator(start: str, columns: Sequence[str]) -> None:
    first = re.split(r"[\r\n]", start.strip(), maxsplit=1)[0]
    for separator in _OTHER_SEPARATORS:
        if sorted(name.strip('"') for name in first.split(separator)) == sorted(columns):
            raise Rejected("wrong_separator")


def _places(header: list[str], columns: Sequence[str]) -> list[int]:
    if len(header) == len(columns) and set(header) == set(columns):
        return [header.index(name) for name in columns]
    raise Rejected("extra_columns" if set(columns) <= set(header) else "wrong_columns")


def _id_problems(counts: Counter[str], ids: Sequence[str]) -> set[Verdict]:
    expected, problems = set(ids), set[Verdict]()
    if any(count > 1 for count in counts.values()):
        problems.add("duplicate_ids")
    if counts.keys() - expected:
        problems.add("extra_ids")
    if expected - counts.keys():
        problems.add("missing_ids")
    return problems


def _read_all(
    rows: Iterable[list[str]], form: Form, read: Callable[[str], Any]
) -> tuple[list[Any], set[Verdict]]:
    """Return the values of the usable rows, and what is wrong with the others."""
    values, problems = [], set[Verdict]()
    for row in rows:
        value, faults = [], set[Verdict]()
        for cell in row:
            try:
                value.append(read(cell))
            except Rejected as rejected:
                faults.add(rejected.verdict)
        if not faults and form.content == "probabilities" and len(value) > 1 and sum(value) <= 0:
            faults.add("out_of_range")  # there is nothing to divide the row by
        if not faults:
            values.append(value)
        problems |= faults
    return values, problems


def _as_array(values: list[Any], form: Form) -> Array:
    array = np.array(values, dtype=_DTYPES.get(form.content, np.float64))
    return array.reshape(len(values), -1)


def cell_reader(form: Form) -> Callable[[str], Any]:
    """Return what reads one target cell as a value, or raises `Rejected`."""
    if form.content == "text":
        return _read_text
    if form.content == "labels":
        return _label_reader(form.labels)
    if form.content == "ranking":
        return _ranking_reader(form.labels)
    return _number_reader(form.minimum, form.maximum)


def _read_text(cell: str) -> str:
    if not cell.strip():
        raise Rejected("missing_values")
    return cell


def _number_reader(minimum: float, maximum: float) -> Callable[[str], float]:
    def read(cell: str) -> float:
        number = _number(cell)
        if not math.isfinite(number):
            raise Rejected("not_finite")
        if not minimum <= number <= maximum:
            raise Rejected("out_of_range")
        return number

    return read


def _number(cell: str) -> float:
    text = cell.strip()
    if not text:
        raise Rejected("missing_values")
    if len(text) > _NUMBER_CHARACTERS or "_" in text:
        raise Rejected("not_numeric")
    try:
        return float(text)
    except ValueError:
        raise Rejected("not_numeric") from None


def _number_or_nan(cell: str) -> float:
    try:
        return _number(cell)
    except Rejected:
        return math.nan


def _label_reader(labels: Sequence[str]) -> Callable[[str], int]:
    """Return what reads a label as its position; 1.0 is the label 1, but 007 is not 7."""
    positions = {label: position for position, label in enumerate(labels)}
    numbers = {float(label): positions[label] for label in labels if _PLAIN_NUMBER.fullmatch(label)}

    def read(cell: str) -> int:
        position = positions.get(cell)
        if position is not None:
            return position
        if not cell.strip():
            raise Rejected("missing_values")
        number = _number_or_nan(cell)
        if number in numbers and _PLAIN_NUMBER.fullmatch(cell):
            return numbers[number]
        raise Rejected("probability_for_label" if 0 < number < 1 else "unknown_label")

    return read


def _ranking_reader(labels: Sequence[str]) -> Callable[[str], list[int]]:
    read_label = _label_reader(labels)

    def read(cell: str) -> list[int]:
        guesses = [read_label(word) for word in cell.split()[:GUESSES]]
        if not guesses:
            raise Rejected("missing_values")
        return guesses + [-1] * (GUESSES - len(guesses))

    return read
