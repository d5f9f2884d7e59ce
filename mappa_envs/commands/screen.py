"""What commands print. Agents, programs and tasks wrote most of it, so none of it is obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mappa_envs.records import printable
from mappa_envs.types import Message

_WIDEST = 1000
"""Characters of a table's line at most."""


class Screen:
    """The terminal; neither markup nor a control character in a text has an effect."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._wide = Console(highlight=False, width=_WIDEST)

    def say(self, text: str, style: str = "") -> None:
        """Print a text as it is; lines are not broken."""
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def messages(self, messages: Iterable[Message]) -> None:
        """Print messages, each in a frame that names who speaks."""
        for message in messages:
            body = Text(printable(message["content"]))
            title = Text(printable(message["role"]))
            self._console.print(Panel(body, title=title, title_align="left"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; its lines are as long as they are."""
        table = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._wide.print(table)


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield a place for bars on stderr that are gone in the end; none are shown but in a terminal.

    Stdout stays free for what a command returns.
    """
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        yield bars
