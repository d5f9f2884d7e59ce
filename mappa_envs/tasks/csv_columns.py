"""Columns of a CSV file that somebody else wrote; whatever is wrong with it is one clear error."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mappa_envs.errors import TaskError

_MEND = "take it anew from its source"
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""What other programs put between cells."""


def read_header(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        TaskError: the file cannot be read, is empty, or is no CSV, or none with commas.
    """
    return next(_rows(path))


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Return columns of a table as text, in the order asked for; blank lines are skipped.

    All of the file is read, so that damage in other columns is found too; no more of it is kept
    than what is asked for.

    Raises:
        TaskError: the file cannot be read, is no CSV in UTF-8, lacks a column or has it twice, has
            no rows, or has a row of another length than its header.
    """
    rows = _rows(path)
    header = next(rows)
    places = [_place(path, header, name) for name in names]
    columns: list[list[str]] = [[] for _ in names]
    filled = list(zip(places, columns, strict=True))
    number = 0
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise TaskError(
                f"{path}: row {number} has {len(row)} cells and the header {len(header)}; {_MEND}"
            )
        for place, column in filled:
            column.append(row[place])
    if not number:
        raise TaskError(f"{path}: has a header and no rows; {_MEND}")
    return dict(zip(names, columns, strict=True))


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the header and then the rows; there is a header at least."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = (row for row in csv.reader(_lines(path, file), strict=True) if not _blank(row))
            header = next(rows, None)
            if header is None:
                raise TaskError(f"{path}: is empty; {_MEND}")
            _check_separator(path, header)
            yield header
            yield from rows
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise TaskError(f"{path}: is no CSV ({error}); {_MEND}") from None


def _lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if "\0" in line:
            raise TaskError(f"{path}: has zero bytes in it, as a damaged file has; {_MEND}")
        yield line


def _blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _check_separator(path: Path, header: list[str]) -> None:
    for separator, name in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise TaskError(
                f"{path}: there is one column, {header[0]!r:.80}; the file seems to be separated "
                f"by {name}; save it with commas"
            )


def _place(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise TaskError(
            f"{path}: there is no column {name!r}; the columns are {', '.join(header)[:200]}"
        )
    if header.count(name) > 1:
        raise TaskError(f"{path}: there are {header.count(name)} columns {name!r}; keep one")
    return header.index(name)
