"""`mappa play`: one episode at the terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.coach.ledger import entry_record
from mappa_envs.commands.screen import Screen
from mappa_envs.commands.seats import seat_policies
from mappa_envs.errors import CommandError, did_you_mean
from mappa_envs.play import Observation, Played, Policy, play
from mappa_envs.records import turn_lines, turn_record
from mappa_envs.registry import make_pipeline
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.source import SPLITS
from mappa_envs.types import LedgerEntry


@dataclass(frozen=True, slots=True)
class Choice:
    """Which task is played, e.g. `Choice("test", "3", seed=0)`; without a task the seed draws."""

    split: str | None
    """By default that of the task's id, or `"train"`."""
    task: str | None
    seed: int

    def options(self) -> dict[str, Any]:
        """Return what `reset` is told.

        Raises:
            CommandError: there is no such split.
        """
        if self.split not in (None, *SPLITS):
            hint = did_you_mean(self.split, SPLITS, "it can be")
            raise CommandError(f"--split is {self.split!r}; {hint}")
        options: dict[str, Any] = {} if self.split is None else {"split": self.split}
        if self.task is not None:
            options["task"] = int(self.task) if _is_index(self.task) else self.task
        return options


class Narrator:
    """A policy that lets each seat act, and tells what came of every action."""

    def __init__(
        self, env: AECEnv[str, Any, Any], seats: Mapping[str, Policy], screen: Screen
    ) -> None:
        self._env = env
        self._seats = seats
        self._screen = screen
        self._told = 0

    def __call__(self, agent: str, observation: Observation) -> str:
        """Tell what happened since the last call, and return the seat's action."""
        if not self._told and not self._env.unwrapped.turns:
            task = self._env.unwrapped.task
            self._screen.say(f"task {task.id}: {task.prompt}", "bold")
        self.tell()
        return self._seats[agent](agent, observation)

    def tell(self) -> None:
        """Print the actions that were not told yet, with their output, files and scores."""
        turns = self._env.unwrapped.turns
        entries = {entry.step: entry for entry in ledger_of(self._env)}
        for turn in turns[self._told :]:
            self._screen.say("")
            for line in turn_lines(turn, entries.get(turn.step)):
                self._screen.say(line)
        self._told = len(turns)


def play_scenario(
    name: str,
    team: str,
    seats: list[str],
    choice: Choice,
    coach: bool | None,
    save: Path | None,
    tables: Mapping[str, Any],
) -> None:
    """Play one episode, show it, and keep it where `save` says.

    Args:
        name: A shipped scenario, or a folder.
        team: Who sits in the seats that `seats` leaves out: `"person"`, `"scripted"` or a team.
        seats: Such as `"coder_0=person"`.
        choice: Which task.
        coach: Whether the rubric coach scores; None if every role has a rubric.
        save: A file to make, or None.
        tables: Laid over the scenario's file.

    Raises:
        MappaEnvError: something that was asked for is not there.
    """
    options = choice.options()
    if save is not None:
        _check_free(save)
    screen = Screen()
    folder = scenario_folder(name)
    env = make_coached(folder, coach, tables)
    try:
        narrator = Narrator(env, seat_policies(env, folder, team, seats, screen), screen)
        played = play(env, narrator, choice.seed, options)
        narrator.tell()
        tell_end(env, played, screen)
        if save is not None:
            _write(save, env, played)
            screen.say(f"saved: {save}")
    finally:
        env.close()


def make_coached(
    folder: Path, coach: bool | None = None, tables: Mapping[str, Any] | None = None
) -> AECEnv[str, Any, Any]:
    """Return a scenario's environment, with the rubric coach if every role has a rubric.

    Args:
        folder: A scenario folder.
        coach: True or False decides it whatever the rubrics.
        tables: Laid over the scenario's file.
    """
    if coach is None:
        coach = all(role.rubric for role in load_scenario(folder, tables).roles.values())
    return make_pipeline(folder, scenario=tables, coach={"kind": "rubric"} if coach else None)


def tell_end(env: AECEnv[str, Any, Any], played: Played, screen: Screen) -> None:
    """Print how the episode ended, its outcome, and what each agent was paid."""
    base = env.unwrapped
    screen.say(f"\nended: {base.end_reason}", "bold")
    if base.outcome is None:
        screen.say("outcome: none")
    else:
        outcome = base.outcome
        screen.say(f"outcome: {outcome.score:g} ({outcome.verdict}): {outcome.reason}")
    paid = ", ".join(f"{agent} {sum(own):.4g}" for agent, own in played.rewards.items())
    screen.say(f"paid: {paid}")


def ledger_of(env: AECEnv[str, Any, Any]) -> tuple[LedgerEntry, ...]:
    """Return the ledger; empty without a coach."""
    entries: tuple[LedgerEntry, ...] = getattr(env, "ledger", ())
    return entries


def _is_index(task: str) -> bool:
    return task.isascii() and task.isdigit()


def _check_free(path: Path) -> None:
    """Refuse a file that could not be written in the end, before anybody has played."""
    if path.exists():
        raise CommandError(f"{path}: exists already; name another file with --save")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise CommandError(f"{path}: cannot be written; name a file in a folder that you may use")


def _write(path: Path, env: AECEnv[str, Any, Any], played: Played) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in _records(env, played))
    with path.open("x", encoding="utf-8") as file:
        file.write(lines)


def _records(env: AECEnv[str, Any, Any], played: Played) -> Iterator[dict[str, Any]]:
    """Yield each action with its ledger entry, then the end; every record names the task."""
    base = env.unwrapped
    entries = {entry.step: entry_record(entry) for entry in ledger_of(env)}
    for turn in base.turns:
        yield {
            "task": base.task.id,
            "agent": turn.agent,
            "role": turn.role,
            "messages": list(turn.messages),
            "action": turn.action,
            **turn_record(turn),
            "ledger": entries.get(turn.step),
        }
    yield {
        "task": base.task.id,
        "end_reason": base.end_reason,
        "outcome": None if base.outcome is None else asdict(base.outcome),
        "paid": {agent: sum(own) for agent, own in played.rewards.items()},
    }
