"""`mappa scenario check`: every mistake of a folder, then a scripted episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.coach.rubric import rubric_problems
from mappa_envs.commands.playing import ledger_of, make_coached, tell_end
from mappa_envs.commands.screen import Screen
from mappa_envs.errors import SandboxError, ScenarioError, TaskError
from mappa_envs.play import play
from mappa_envs.records import printable
from mappa_envs.scenario import (
    SCENARIO_FILE,
    Scenario,
    load_scenario,
    merge,
    read_table,
    role_tables,
    scenario_folder,
)
from mappa_envs.tasks.source import SPLITS, BatchedTasks, TaskSource
from mappa_envs.tasks.sources import task_source
from mappa_envs.team_files import scenario_teams, team_problems
from mappa_envs.teams import ScenarioTeam
from mappa_envs.types import LedgerEntry, Split, Turn


def check_scenario(name: str, tables: Mapping[str, Any]) -> bool:
    """Check a scenario and play it by its scripts; return whether it is fine.

    Mistakes go to stderr, one line each; what was found and played goes to stdout.

    Args:
        name: A shipped scenario, or a folder.
        tables: Laid over its file.

    Raises:
        ScenarioError: there is no such scenario.
        SandboxError: the scripted episode could not be played to its end.
    """
    folder = scenario_folder(name)
    problems = scenario_problems(folder, tables)
    for problem in problems:
        typer.echo(printable(" ".join(problem.split("\n"))), err=True)
    if problems:
        return False
    screen = Screen()
    _tell_scenario(load_scenario(folder, tables), scenario_teams(folder), screen)
    env = make_coached(folder, tables=tables)
    try:
        _play_scripted(env, screen)
    finally:
        env.close()
    return True


def scenario_problems(folder: Path, tables: Mapping[str, Any] | None = None) -> list[str]:
    """Return everything that is wrong with a scenario folder, one line for each mistake.

    Keys, prompts, scripts, rubrics, teams and task files are looked at; a mistake hides none of
    another kind.

    Args:
        folder: The scenario's.
        tables: Laid over its file.
    """
    path = folder / SCENARIO_FILE
    file = f"{path}, with the tables laid over it" if tables else str(path)
    try:
        table = merge(read_table(path), tables or {})
    except ScenarioError as error:
        return list(error.problems)
    problems = [f"{file}: {line}" for line in _rubric_problems(table)]
    try:
        scenario = load_scenario(folder, tables)
    except ScenarioError as error:
        return [*error.problems, *problems]
    problems += team_problems(folder, scenario)
    try:
        task_source(scenario)
    except TaskError as error:
        key = "generated" if scenario.tasks == "generated" else "tasks"
        problems += (f"{file}: {key}: {problem}" for problem in error.problems)
    return problems


def _rubric_problems(table: Mapping[str, Any]) -> Iterator[str]:
    for name, role in role_tables(table).items():
        rubric = role.get("rubric")
        if isinstance(rubric, Mapping):
            checks = {key: value for key, value in rubric.items() if isinstance(value, Mapping)}
            yield from rubric_problems(name, checks)


def _tell_scenario(scenario: Scenario, teams: Sequence[str], screen: Screen) -> None:
    screen.say(f"scenario {scenario.name}: {' > '.join(scenario.visits)}", "bold")
    screen.table(
        ("role", "visits", "actions a visit", "tools", "script texts", "rubric checks"),
        (
            (
                name,
                str(scenario.visits.count(name)),
                str(role.max_turns),
                ", ".join(role.tools) or "none",
                str(len(role.script)),
                str(len(role.rubric)),
            )
            for name, role in scenario.roles.items()
        ),
    )
    source = task_source(scenario)
    sizes = ", ".join(f"{split} {_count(source, split)}" for split in SPLITS)
    if teams:
        screen.say(f"teams: {', '.join(teams)}")
    screen.say(f"tasks: {sizes}\n")


def _count(source: TaskSource, split: Split) -> str:
    """Return how many tasks a split has; one that is dealt out twice is one."""
    if isinstance(source, BatchedTasks):
        return str(len(source.splits[split]))
    size = source.size(split)
    return "without end" if size is None else str(size)


def _play_scripted(env: AECEnv[str, Any, Any], screen: Screen) -> None:
    base = env.unwrapped
    is_test_only = base.metadata.get("task_ids", {}).get("train") == []
    played = play(env, ScenarioTeam(env), 0, {"split": "test" if is_test_only else "train"})
    entries = {entry.step: entry for entry in ledger_of(env)}
    coach = "the rubric coach" if entries else "no coach, for a role has no rubric"
    screen.say(f"scripted episode of task {base.task.id}, {coach}:")
    screen.table(
        ("action", "agent", "programs", "score"),
        (_action_row(turn, entries.get(turn.step)) for turn in base.turns),
    )
    if base.end_reason != "completed":
        raise SandboxError(
            f"the scripted episode of task {base.task.id} ended with {base.end_reason!r}: "
            f"{base.turns[-1].feedback}"
        )
    tell_end(env, played, screen)


def _action_row(turn: Turn, entry: LedgerEntry | None) -> tuple[str, str, str, str]:
    ends = ", ".join("ran" if result.ok else "failed" for result in turn.tool_results)
    score = "" if entry is None else entry.status if entry.score is None else f"{entry.score:.4g}"
    return (str(turn.step + 1), turn.agent, ends or "none", score)
