"""`mappa audit --probe`: does a coach keep its head when an action is dressed up or broken?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from mappa_envs.audit.material import play_material
from mappa_envs.audit.probing import Inquiry, ProbeReport, Row, ask_all
from mappa_envs.bench import choose_tasks
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.screen import Screen
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


def probe_scenario(request: ProbeRequest, *, as_json: bool) -> ProbeReport:
    """Probe a coach with the actions of scripted teams, print what was found, and return it.

    Raises:
        MappaEnvError: something that was asked for is not there.
    """
    folder = scenario_folder(request.scenario)
    names = team_names(folder, request.teams or _default_teams(folder))
    tasks = choose_tasks(task_source(load_scenario(folder)), request.tasks, ("train",))
    env = make_pipeline(folder, coach=coach_table(request.coach))
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("playing", total=None)
        try:
            teams = [named_team(folder, name, env) for name in names]
            material = play_material(env.unwrapped, env.coach, teams, tasks, request.seed)
        finally:
            env.close()
        inquiry = Inquiry(*material, repeats=request.repeats)
        progress.update(bar, description="asking the coach", total=len(inquiry.asked))
        asking = ask_all(
            env.coach,
            inquiry.asked,
            at_once=request.at_once,
            tell=lambda: progress.advance(bar),
        )
        report = inquiry.report(env.coach.id, asyncio.run(asking))
    if as_json:
        typer.echo(json.dumps(report.record(), indent=2))
    else:
        show_probes(report, Screen())
    return report


def show_probes(report: ProbeReport, screen: Screen) -> None:
    """Print a table of the probes, and how many gave alarm."""
    screen.say(f"coach {report.coach}: {report.actions} actions, {report.asked} judgements", "bold")
    screen.table(("probe", "variant", "measured", "found", "wanted", ""), map(_cells, report.rows))
    screen.say(f"alarms: {len(report.alarms)} of {len(report.rows)} rows")


def _cells(row: Row) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value:.2f}" for name, value in row.figures.items())
    failed = ", ".join(f"{count} {kind}" for kind, count in row.failures.items())
    verdict = {True: "ok", False: "ALARM", None: ""}[row.passed]
    measured = f"{row.count} (not judged: {failed})" if failed else str(row.count)
    return row.probe, row.variant, measured, figures or "not measurable", row.wanted, verdict


def _default_teams(folder: Path) -> str:
    """Return `scripted`, `noop` where there is one, and the first faulty team of each role."""
    scenario, known = load_scenario(folder), scenario_teams(folder)
    faulty: dict[str, str] = {}
    for name in known:
        if culprit := load_team(folder, name, scenario).culprit:
            faulty.setdefault(culprit, name)
    return ",".join(("scripted", *(name for name in known if name == NOOP), *faulty.values()))
