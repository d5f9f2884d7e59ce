"""`mappa bench`: scripted teams on many tasks, and a table of what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from mappa_envs.bench import choose_tasks, make_jobs, run_jobs, summarise
from mappa_envs.bench_file import version_of
from mappa_envs.commands.kept import check_resume, kept_results
from mappa_envs.commands.playing import make_coached
from mappa_envs.commands.screen import Screen
from mappa_envs.commands.seats import named_team, team_names
from mappa_envs.errors import CommandError, did_you_mean
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.source import SPLITS
from mappa_envs.tasks.sources import task_source
from mappa_envs.types import Split

BOTH = "both"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be played and where it is kept."""

    scenario: str
    teams: str
    """Names with commas between them."""
    tasks: str
    """`"all"`, a number, or ids with commas between them."""
    split: str
    seeds: int
    at_once: int
    out: Path | None
    resume: bool
    tables: Mapping[str, Any]
    """Laid over the scenario's file."""

    def split_names(self) -> tuple[Split, ...]:
        """Return the splits that tasks are taken from.

        Raises:
            CommandError: there is no such split.
        """
        if self.split not in (*SPLITS, BOTH):
            hint = did_you_mean(self.split, (*SPLITS, BOTH), "it can be")
            raise CommandError(f"--split is {self.split!r}; {hint}")
        return tuple(name for name in SPLITS if self.split in (name, BOTH))


def bench_scenario(request: Request, *, as_json: bool) -> None:
    """Play every team on every task, and print a table or, on stdout alone, JSON.

    Args:
        request: What is played.
        as_json: Whether the summary is printed as JSON.

    Raises:
        MappaEnvError: something that was asked for is not there.
    """
    check_resume(request.out, request.resume)
    folder = scenario_folder(request.scenario)
    names = team_names(folder, request.teams)
    scenario = load_scenario(folder, request.tables)
    tasks = choose_tasks(task_source(scenario), request.tasks, request.split_names())
    _check_splits(tasks, request.split_names())
    env = make_coached(folder, tables=request.tables)
    with ExitStack() as closing:
        closing.callback(env.close)
        teams = {name: named_team(folder, name, env) for name in names}
        results = kept_results(
            make_jobs(names, tasks, request.seeds),
            {name: version_of(folder, team, request.tables) for name, team in teams.items()},
            request.out,
            request.resume,
            lambda jobs, tell: asyncio.run(
                run_jobs(env, teams, jobs, tell, at_once=request.at_once)
            ),
        )
    summary = {
        "scenario": scenario.name,
        "tasks": len(tasks),
        "seeds": request.seeds,
        "teams": summarise(results),
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _tell(summary, Screen())


def _check_splits(tasks: Mapping[str, Split], wanted: Sequence[Split]) -> None:
    for name, split in tasks.items():
        if split not in wanted:
            raise CommandError(
                f"--tasks names {name}, which is a {split} task; leave --split out or give --split "
                f"{split}"
            )


def _tell(summary: Mapping[str, Any], screen: Screen) -> None:
    screen.say(
        f"scenario {summary['scenario']}, tasks: {summary['tasks']}, seeds: {summary['seeds']}",
        "bold",
    )
    teams: Mapping[str, Mapping[str, Any]] = summary["teams"]
    _table(screen, ("team",), [((name,), figures) for name, figures in teams.items()])
    typed = [
        ((kind, name), figures)
        for name, team in teams.items()
        for kind, figures in team["task_types"].items()
    ]
    if typed:
        screen.say("")
        _table(screen, ("task type", "team"), sorted(typed, key=lambda row: row[0][0]))


def _table(
    screen: Screen, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], Mapping[str, Any]]]
) -> None:
    """Print rows with the columns in which any of them has something."""
    details = dict.fromkeys(name for _, figures in rows for name in figures["details"])
    cells = [dict(_cells(figures, list(details))) for _, figures in rows]
    columns = [name for name in cells[0] if any(row[name] for row in cells)]
    screen.table(
        (*heads, *columns),
        (
            (*names, *(row[column] for column in columns))
            for (names, _), row in zip(rows, cells, strict=True)
        ),
    )


def _cells(figures: Mapping[str, Any], details: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield all columns of a row, each with its text, which may be empty."""
    yield "episodes", str(figures["episodes"])
    yield "undecided", str(figures["undecided"] or "")
    yield "outcome", _number(figures["outcome"])
    for name in details:
        yield (
            name.replace("_percent", " %").replace("_", " "),
            _number(figures["details"].get(name)),
        )
    for agent, paid in figures["paid"].items():
        yield f"paid {agent}", _number(paid)
    yield "seconds", _number(figures["seconds"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
