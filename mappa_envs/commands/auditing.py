"""`mappa audit RUN`: what stored episodes tell of the coach that scored them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mappa_envs.audit.rejudging import Agreement, agreements, rejudge
from mappa_envs.audit.remade import remade_env
from mappa_envs.audit.report import Audit, audit
from mappa_envs.audit.stored import StoredRun
from mappa_envs.commands.coach_option import coach_table


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be audited."""

    run: Path
    source: str
    """The name of the one file of episodes that is looked at; empty for all of training."""
    coach: tuple[str, ...]
    """The table of a second coach, see `coach_table`; none is asked where it is empty."""


def audit_run(request: Request) -> Audit:
    """Audit a run.

    Raises:
        MappaEnvError: the run is empty or damaged, or something that was asked for is not there.
    """
    run = StoredRun.open(request.run, request.source)
    coach = coach_table(request.coach)
    found = audit(run)
    if not request.coach:
        return found
    return replace(found, agreement=tuple(_agreements(run, found, coach)))


def _agreements(run: StoredRun, found: Audit, coach: Mapping[str, Any]) -> list[Agreement]:
    with remade_env(run, coach) as env, Console(stderr=True).status("") as status:

        def tell(done: int) -> None:
            status.update(f"{env.coach.id} judges: {done} of {found.episodes} episodes")

        both = asyncio.run(rejudge(run, env, tell))
        return agreements(both, ", ".join(found.coaches), env.coach.id)
