"""Plays a stored episode again, and makes sure that it is the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.audit.counterfactual import Credit, episode_credits
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ReplayError
from mappa_envs.play import Observation, Play, Policy
from mappa_envs.teams import NOTHING_TO_SAY
from mappa_envs.types import Message

_EXCERPT = 60
"""Characters of either text that an error shows."""
_FIX = "play it with the scenario, the task files and the version that it was stored with"


@dataclass(frozen=True, slots=True)
class StoredAction:
    """What an agent saw and said, and what the coach said of it."""

    agent: str
    messages: tuple[Message, ...]
    text: str
    score: float | None


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """One episode as it is stored."""

    place: str
    """Where it is stored, for errors."""
    play: Play
    actions: tuple[StoredAction, ...]
    outcome: float | None

    @classmethod
    def of(cls, row: Mapping[str, Any], place: str) -> StoredEpisode:
        """Read a row of a run's episodes.

        Raises:
            ReplayError: the row is no episode.
        """
        try:
            actions = tuple(
                StoredAction(
                    action["agent"],
                    tuple(action["messages"]),
                    action["action"],
                    (action.get("ledger") or {}).get("score"),
                )
                for action in row["actions"]
            )
            play = Play(row["seed"], dict(row["options"]))
            return cls(place, play, actions, (row.get("outcome") or {}).get("score"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ReplayError(f"{place}: is no stored episode: {error!r}") from None


class Recorded:
    """A policy that says what was said in a stored episode.

    As long as the episode is the stored one, everything must be as it was. Once another action was
    taken, each agent goes on with its own texts in order, the last one over and over, whatever it
    sees.
    """

    def __init__(self, env: AECEnv[str, Any, Any], stored: StoredEpisode) -> None:
        self._env: PipelineEnv = env.unwrapped
        self._stored = stored

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the stored text for the agent's next action.

        Raises:
            ReplayError: the episode is not the stored one, though every action was.
        """
        turns = self._env.turns
        stored = self._stored.actions
        if all(turn.action == own.text for turn, own in zip(turns, stored, strict=False)):
            _compare(self._stored, len(turns), agent, observation["messages"])
            return stored[len(turns)].text
        texts = [own.text for own in stored if own.agent == agent] or [NOTHING_TO_SAY]
        said = sum(turn.agent == agent for turn in turns)
        return texts[min(said, len(texts) - 1)]


def stored_credits(
    env: AECEnv[str, Any, Any],
    stored: StoredEpisode,
    resample: Sequence[Policy],
    samples: int,
    *,
    episode: str = "",
    onward: Policy | None = None,
) -> tuple[Credit, ...]:
    """Return the credit of each action of a stored episode, with the score that is stored.

    Args:
        env: Made as the stored episode's was; it needs no coach.
        stored: What is played again.
        resample: Propose the alternatives, in turn.
        samples: Alternatives to each action.
        episode: How the credits name it.
        onward: Plays on after an action or its alternative; None says what is stored, so that
            nobody reacts to what has changed.

    Raises:
        ReplayError: the episode goes elsewhere than the stored one, and the message says where.
    """
    policy = Recorded(env, stored)
    credits = episode_credits(
        env, policy, resample, stored.play, samples, episode=episode, onward=onward
    )
    if onward is None and credits and stored.outcome not in (None, credits[0].outcome):
        raise ReplayError(
            f"{stored.place}: its outcome is {stored.outcome:g} and that of the same actions now "
            f"{credits[0].outcome:g}; {_FIX}"
        )
    return tuple(replace(each, score=stored.actions[each.step].score) for each in credits)


def _compare(stored: StoredEpisode, step: int, agent: str, messages: Sequence[Message]) -> None:
    """Raise a `ReplayError` unless the agent is to act and sees what is stored."""
    if step >= len(stored.actions):
        raise ReplayError(
            f"{stored.place}: has {step} actions, and now {agent} is to act once more; {_FIX}"
        )
    own = stored.actions[step]
    where = f"{stored.place}: action {step + 1}"
    if agent != own.agent:
        raise ReplayError(f"{where} is of {own.agent}, and now {agent} is to act; {_FIX}")
    if len(messages) != len(own.messages):
        raise ReplayError(
            f"{where}, of {agent}: it saw {len(own.messages)} messages, and now {len(messages)}; "
            f"{_FIX}"
        )
    for number, (then, now) in enumerate(zip(own.messages, messages, strict=True), start=1):
        if dict(then) != dict(now):
            raise ReplayError(
                f"{where}, of {agent}: message {number} {_difference(then, now)}; {_FIX}"
            )


def _difference(then: Message, now: Message) -> str:
    if then["role"] != now["role"]:
        return f"was of role {then['role']!r} and is of {now['role']!r}"
    old, new = then["content"], now["content"]
    pairs = enumerate(zip(old, new, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    end = start + _EXCERPT
    return f"differs from character {start + 1} on: {old[start:end]!r} then, {new[start:end]!r} now"
