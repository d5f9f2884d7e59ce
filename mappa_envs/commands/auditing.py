"""`mappa audit`: what stored episodes tell of the coach that scored them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from mappa_envs.audit.page import page
from mappa_envs.audit.rejudging import Agreement, agreements, coached_env, rejudge
from mappa_envs.audit.report import Audit, audit
from mappa_envs.audit.sections import sections, summary
from mappa_envs.audit.stored import StoredRun
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.screen import Screen


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be audited, and where the audit goes."""

    run: Path
    source: str
    """The name of the one file of episodes that is looked at; empty for all of training."""
    coach: tuple[str, ...]
    """The table of a second coach, see `coach_table`; none is asked where it is empty."""
    html: Path | None
    as_json: bool


def audit_run(request: Request) -> None:
    """Audit a run, and print tables or, on stdout alone, JSON.

    Raises:
        MappaEnvError: the run is empty or damaged, or something that was asked for is not there.
    """
    run = StoredRun.open(request.run, request.source)
    coach = coach_table(request.coach)
    found = audit(run)
    if request.coach:
        found = replace(found, agreement=tuple(_agreements(run, found, coach)))
    if request.html is not None:
        request.html.write_text(page(found), encoding="utf-8")
    if request.as_json:
        typer.echo(json.dumps(found.record(), indent=2, allow_nan=False))
    else:
        _tell(found, Screen())


def _agreements(run: StoredRun, found: Audit, coach: Mapping[str, Any]) -> list[Agreement]:
    with coached_env(run, coach) as env, Console(stderr=True).status("") as status:

        def tell(done: int) -> None:
            status.update(f"{env.coach.id} judges: {done} of {found.episodes} episodes")

        both = asyncio.run(rejudge(run, env, tell))
        return agreements(both, ", ".join(found.coaches), env.coach.id)


def _tell(found: Audit, screen: Screen) -> None:
    screen.say(summary(found), "bold")
    for section in sections(found):
        screen.say(f"\n{section.title}", "bold")
        if not section.rows:
            screen.say(section.otherwise)
            continue
        screen.say(section.note, "dim")
        screen.table(section.columns, section.rows)
