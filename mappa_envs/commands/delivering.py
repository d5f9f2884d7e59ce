"""Where an audit goes: to the terminal or, as JSON, to stdout, and into a page."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from mappa_envs.audit.document import Document
from mappa_envs.audit.page import page
from mappa_envs.commands.screen import Screen


def deliver(document: Document, html: Path | None, *, as_json: bool) -> None:
    """Print an audit, as tables or as JSON alone, and write it as a page where that is asked for.

    Args:
        document: The audit.
        html: The page's file; None for no page.
        as_json: Whether JSON is printed.
    """
    if html is not None:
        html.write_text(page(document), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(document.record, indent=2, allow_nan=False))
    else:
        _tell(document, Screen())


def _tell(document: Document, screen: Screen) -> None:
    screen.say(document.summary, "bold")
    for section in document.sections:
        screen.say(f"\n{section.title}", "bold")
        if not section.rows:
            screen.say(section.otherwise)
            continue
        screen.say(section.note, "dim")
        screen.table(section.columns, section.rows)
