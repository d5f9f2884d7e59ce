"""Who acts: a person at the terminal, a team of the scenario's, or texts from a file."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.commands.screen import Screen
from mappa_envs.errors import CommandError, did_you_mean
from mappa_envs.play import Observation, Policy
from mappa_envs.team_files import RESERVED, TeamScript, load_team, scenario_teams
from mappa_envs.teams import ScenarioTeam

_BETWEEN_TEXTS = re.compile(r"^---[ \t]*\n", re.MULTILINE)


class Person:
    """A policy that shows a person what the agent sees, and reads the action from stdin."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return what the person typed.

        Raises:
            CommandError: what is piped in has ended before this action.
        """
        messages = observation["messages"]
        own = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        self._screen.messages(messages[own[-1] + 1 if own else 0 :])
        self._screen.say(f"{agent}: type what it says, then a line with a single dot.", "bold")
        return _typed(agent)


class TextFile:
    """A policy that says the texts of a file in order, whatever it sees."""

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: cannot be read: {_reason(error)}") from None
        self._path = path
        self._texts = [part.strip("\n") for part in _BETWEEN_TEXTS.split(text)]
        self._said = 0

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the next text.

        Raises:
            CommandError: the file has no text left.
        """
        if self._said == len(self._texts):
            raise CommandError(
                f"{self._path}: has no text for action {self._said + 1} of {agent}; "
                "add one after a line of three dashes"
            )
        self._said += 1
        return self._texts[self._said - 1]


def named_team(folder: Path, name: str, env: AECEnv[str, Any, Any]) -> TeamScript | None:
    """Return a team of the scenario's; None for `"scripted"`, the roles' own scripts.

    Args:
        folder: The scenario's.
        name: `"scripted"`, or one of the folder's teams.
        env: What is played.

    Raises:
        ScenarioError: the team's file is wrong.
    """
    return None if name == "scripted" else load_team(folder, name, env.unwrapped.scenario)


def team_names(folder: Path, wanted: str, option: str = "--team") -> list[str]:
    """Return the names of teams that an option gives, each once.

    Args:
        folder: The scenario's.
        wanted: Names with commas between them: `"scripted"`, or teams of the folder's.
        option: Which option, for the error.

    Raises:
        CommandError: there is no such team.
    """
    known = ("scripted", *scenario_teams(folder))
    names = list(dict.fromkeys(name.strip() for name in wanted.split(",")))
    for name in names:
        if name not in known:
            raise CommandError(f"{option} names {name!r}; {did_you_mean(name, known, 'it can be')}")
    return names


def seat_policies(
    env: AECEnv[str, Any, Any], folder: Path, team: str, choices: Sequence[str], screen: Screen
) -> Mapping[str, Policy]:
    """Return who acts for each agent.

    Args:
        env: What is played.
        folder: The scenario's.
        team: `"person"`, `"scripted"` or a team of the folder's, for every seat that `choices`
            leaves out.
        choices: Such as `"coder_0=person"`, `"coder_0=weak"` or `"coder_0=texts.md"`.
        screen: Where persons look.

    Raises:
        CommandError: there is no such team, seat or file.
        ScenarioError: a team's file is wrong.
    """
    known = (*RESERVED, *scenario_teams(folder))

    def policy(name: str) -> Policy:
        if name == "person":
            return Person(screen)
        return ScenarioTeam(env, named_team(folder, name, env))

    if team not in known:
        raise CommandError(f"--team is {team!r}; {did_you_mean(team, known, 'it can be')}")
    seats = dict.fromkeys(env.possible_agents, policy(team))
    taken: dict[str, str] = {}
    for choice in choices:
        agent, _, who = choice.partition("=")
        if not who:
            raise CommandError(f"--seat is {choice!r}; write AGENT=person, =TEAM or =FILE")
        if agent not in seats:
            hint = did_you_mean(agent, seats, "seats")
            raise CommandError(f"--seat {choice}: there is no seat {agent!r}; {hint}")
        if agent in taken:
            raise CommandError(f"--seat {choice}: {agent} has {taken[agent]!r} already; give one")
        taken[agent] = who
        seats[agent] = policy(who) if who in known else _text_file(choice, who, known)
    return seats


def _text_file(choice: str, who: str, known: Sequence[str]) -> TextFile:
    if not Path(who).exists():
        hint = did_you_mean(who, known, "give a file, or one of")
        raise CommandError(f"--seat {choice}: there is no file {who!r}; {hint}")
    return TextFile(Path(who))


def _typed(agent: str) -> str:
    lines: list[str] = []
    while (line := sys.stdin.readline()) and line.rstrip("\r\n") != ".":
        lines.append(line)
    if not line and not lines and not sys.stdin.isatty():
        raise CommandError(f"the input ended before {agent} could act; give one text more")
    return "".join(lines).rstrip("\n")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
