"""What an audit found, made ready for a terminal, a page and programs alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappa_envs.audit.markup import Markup

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One table."""

    title: str
    note: str
    """What its numbers are."""
    columns: Row
    rows: tuple[Row, ...]
    otherwise: str = ""
    """What is said where there are no rows."""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole audit."""

    title: str
    summary: str
    """What was looked at, in a line."""
    sections: tuple[Section, ...]
    record: Mapping[str, Any]
    """The same as JSON-ready data."""
    charts: tuple[Markup, ...] = ()
    """For the page alone."""
