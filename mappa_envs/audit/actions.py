"""What an audit keeps of each action: a few numbers, so that a large run fits into the memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mappa_envs.audit.detectors import Finding, findings
from mappa_envs.audit.stored import (
    EpisodeFile,
    Record,
    StoredEpisode,
    role_of,
    stored_episodes,
    turns_of,
)
from mappa_envs.records import is_decided
from mappa_envs.types import Spent, Turn


@dataclass(frozen=True, slots=True)
class Place:
    """Where an action is stored, e.g. `Place("train-0003", 5, 2)`."""

    file: str
    """What `mappa show --from` takes."""
    episode: int
    """What `mappa show --episode` takes, from 0."""
    action: int
    """Position in the episode, from 0."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the environment knows of a turn for certain; None where it does not apply."""

    exit_0: bool | None
    """Whether every program of the action ended with status 0; None without a program."""
    timed_out: bool | None
    """Whether one of them was stopped at its time limit; None without a program."""
    missing: bool | None
    """Whether an artifact was missing at hand-over; None if the action does not hand over."""


NO_FACTS = Facts(None, None, None)


@dataclass(frozen=True, slots=True)
class Action:
    """One stored action."""

    episode: int
    """Counts through all episodes that are read; of one episode all have the same."""
    place: Place
    agent: str
    role: str
    task: str
    """The task's id; without one, its index."""
    task_type: str | None
    iteration: int | None
    score: float | None
    """The coach's score that pays, 0 to 10; None where the action is unscored."""
    first_score: float | None
    """What the coach said at once."""
    hindsight_score: float | None
    """What it said when it looked back."""
    looked_back: bool
    """Whether it was asked to."""
    outcome: float | None
    """The task's own verdict on the episode, 0 to 1; None where it was not decided."""
    length: int
    unit: str
    """Of the length: `"tokens"` or `"characters"`."""
    facts: Facts
    judged: bool
    """Whether there is a ledger entry."""
    coach: str
    failure: str | None
    """Why there is no score that pays."""
    spent: Spent | None
    truth_shown: bool
    looked_at: bool
    """Whether the detectors had a turn to look at."""
    findings: tuple[Finding, ...]


def read_actions(files: Iterable[EpisodeFile]) -> Iterator[Action]:
    """Yield the actions of all episodes, in order.

    Raises:
        AuditError: a row is damaged; the message names the file and the line.
    """
    episode = 0
    for file in files:
        for stored in stored_episodes(file):
            yield from stored.read(partial(actions_of, stored=stored, episode=episode))
            episode += 1


def actions_of(row: Record, stored: StoredEpisode, episode: int) -> list[Action]:
    """Return the actions of one row.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the row is damaged.
    """
    turns = turns_of(row)
    outcome = _number(row["outcome"]["score"]) if is_decided(row["outcome"]) else None
    task = row["task"]
    task_id = str(task.get("id", row.get("options", {}).get("task")))
    kind = task.get("task_type")
    return [
        Action(
            episode=episode,
            place=Place(stored.file.name, stored.number, index),
            task=task_id,
            task_type=None if kind is None else str(kind),
            iteration=stored.file.iteration,
            outcome=outcome,
            **_said(action),
            facts=NO_FACTS if turns is None else facts_of(turns[index]),
            looked_at=turns is not None,
            findings=() if turns is None else findings(turns[index], turns[:index]),
        )
        for index, action in enumerate(row["actions"])
    ]


def facts_of(turn: Turn) -> Facts:
    """Return what the environment knows of a turn."""
    results = turn.tool_results
    return Facts(
        exit_0=all(result.ok for result in results) if results else None,
        timed_out=any(result.timed_out for result in results) if results else None,
        missing=bool(turn.missing) if turn.handed_off else None,
    )


def _said(action: Record) -> dict[str, Any]:
    """Return what an action's own record says, the ledger's entry included."""
    entry: Mapping[str, Any] = action["ledger"] or {}
    first, hindsight = _score(entry.get("score")), _score(entry.get("hindsight_score"))
    pays_late = entry.get("paid_by") == "hindsight"
    tokens = action.get("tokens")
    spent = entry.get("spent")
    return {
        "agent": str(action["agent"]),
        "role": role_of(action),
        "score": hindsight if pays_late else first,
        "first_score": first,
        "hindsight_score": hindsight,
        "looked_back": hindsight is not None or bool(entry.get("hindsight_rationale")),
        "length": len(action["action"]) if tokens is None else int(tokens),
        "unit": "characters" if tokens is None else "tokens",
        "judged": "score" in entry,
        "coach": str(entry.get("coach", "")),
        "failure": entry.get("hindsight_failure" if pays_late else "failure"),
        "spent": None if spent is None else Spent(**spent),
        "truth_shown": bool(entry.get("truth_shown")),
    }


def _score(value: object) -> float | None:
    if value is None:
        return None
    score = _number(value)
    if not 0 <= score <= 10:
        raise ValueError(f"a score is {score:g}; it must be 0 to 10")
    return score


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.80} is no number")
    return float(value)
