"""`mappa audit --probe`: does a coach keep its head when an action is dressed up or broken?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from mappa_envs.audit.material import play_material
from mappa_envs.audit.probing import Inquiry, ProbeReport, ask_all
from mappa_envs.bench import choose_tasks
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.screen import progress
from mappa_envs.commands.seats import named_team, team_names
from mappa_envs.registry import make_pipeline
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.sources import task_source
from mappa_envs.team_files import load_team, scenario_teams

NOOP = "noop"
"""A team that leaves room for better scores, played where the scenario has it."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Which coach is probed, and with whose actions."""

    scenario: str = "mathchat"
    coach: tuple[str, ...] = ()
    """Its table, see `coach_table`; the rubric where it is empty."""
    teams: str = ""
    """Names with commas between them; when empty `scripted`, `noop` and a faulty one per role."""
    tasks: str = "2"
    """A number of training tasks, or ids with commas between them."""
    seed: int = 0
    repeats: int = 5
    at_once: int = 8


def probe_scenario(request: ProbeRequest) -> ProbeReport:
    """Probe a coach with the actions of scripted teams.

    Raises:
        MappaEnvError: something that was asked for is not there.
    """
    folder = scenario_folder(request.scenario)
    names = team_names(folder, request.teams or _default_teams(folder))
    tasks = choose_tasks(task_source(load_scenario(folder)), request.tasks, ("train",))
    env = make_pipeline(folder, coach=coach_table(request.coach))
    with progress() as bars:
        bar = bars.add_task("playing", total=None)
        try:
            teams = [named_team(folder, name, env) for name in names]
            material = play_material(env.unwrapped, env.coach, teams, tasks, request.seed)
        finally:
            env.close()
        inquiry = Inquiry(*material, repeats=request.repeats)
        bars.update(bar, description="asking the coach", total=len(inquiry.asked))
        asking = ask_all(
            env.coach, inquiry.asked, at_once=request.at_once, tell=lambda: bars.advance(bar)
        )
        return inquiry.report(env.coach.id, asyncio.run(asking))


def _default_teams(folder: Path) -> str:
    """Return `scripted`, `noop` where there is one, and the first faulty team of each role."""
    scenario, known = load_scenario(folder), scenario_teams(folder)
    faulty: dict[str, str] = {}
    for name in known:
        if culprit := load_team(folder, name, scenario).culprit:
            faulty.setdefault(culprit, name)
    return ",".join(("scripted", *(name for name in known if name == NOOP), *faulty.values()))
