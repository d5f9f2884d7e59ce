"""Plays a stored episode again, and makes sure that it is the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.audit.actions import actions_of
from mappa_envs.audit.counterfactual import Credit, episode_credits
from mappa_envs.audit.stored import StoredEpisode, turns_of
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import AuditError, ReplayError
from mappa_envs.play import Observation, Play, Policy
from mappa_envs.teams import NOTHING_TO_SAY
from mappa_envs.types import Message, Turn

_EXCERPT = 60
"""Characters of either text that an error shows."""
_FIX = "play it with the scenario, the task files and the version that it was stored with"


@dataclass(frozen=True, slots=True)
class Recording:
    """A stored episode, as far as it takes to play it again."""

    place: str
    """Where it is stored, for errors."""
    play: Play
    turns: tuple[Turn, ...]
    scores: tuple[float | None, ...]
    """Those that pay, 0 to 10; None where the coach gave none."""
    outcome: float | None
    """0 to 1; None where it was not decided."""

    @classmethod
    def of(cls, stored: StoredEpisode) -> Recording:
        """Read a stored episode.

        Raises:
            AuditError: the row is damaged, or its environment told of no turns.
        """
        turns = stored.read(turns_of)
        if turns is None:
            raise AuditError(f"{stored.place}: its environment told of no turns; play another one")
        actions = stored.read(partial(actions_of, stored=stored, episode=stored.number))
        play = stored.read(lambda row: Play(row["seed"], dict(row["options"])))
        scores = tuple(action.score for action in actions)
        return cls(stored.place, play, turns, scores, actions[0].outcome)


class Recorded:
    """A policy that says what was said in a recorded episode.

    As long as the episode is the recorded one, everything must be as it was. Once another action
    was taken, each agent goes on with its own texts in order, the last one over and over, whatever
    it sees.
    """

    def __init__(self, env: AECEnv[str, Any, Any], recording: Recording) -> None:
        self._env: PipelineEnv = env.unwrapped
        self._recording = recording

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the recorded text for the agent's next action.

        Raises:
            ReplayError: the episode is not the recorded one, though every action was.
        """
        turns = self._env.turns
        recorded = self._recording.turns
        if all(now.action == then.action for now, then in zip(turns, recorded, strict=False)):
            _compare(self._recording, len(turns), agent, observation["messages"])
            return recorded[len(turns)].action
        texts = [then.action for then in recorded if then.agent == agent] or [NOTHING_TO_SAY]
        said = sum(turn.agent == agent for turn in turns)
        return texts[min(said, len(texts) - 1)]


def recorded_credits(
    env: AECEnv[str, Any, Any],
    recording: Recording,
    resample: Sequence[Policy],
    samples: int,
    *,
    episode: str = "",
    onward: Policy | None = None,
) -> tuple[Credit, ...]:
    """Return the credit of each action of a recorded episode, with the score that is stored.

    Args:
        env: Made as the stored episode's was; it needs no coach.
        recording: What is played again.
        resample: Propose the alternatives, in turn.
        samples: Alternatives to each action.
        episode: How the credits name it.
        onward: Plays on after an action or its alternative; None says what is recorded, so that
            nobody reacts to what has changed.

    Raises:
        ReplayError: the episode goes elsewhere than the recorded one; the message says where.
    """
    policy = Recorded(env, recording)
    credits = episode_credits(
        env, policy, resample, recording.play, samples, episode=episode, onward=onward
    )
    if onward is None and credits and recording.outcome not in (None, credits[0].outcome):
        raise ReplayError(
            f"{recording.place}: its outcome is {recording.outcome:g} and that of the same actions "
            f"now {credits[0].outcome:g}; {_FIX}"
        )
    return tuple(replace(each, score=recording.scores[each.step]) for each in credits)


def _compare(recording: Recording, step: int, agent: str, messages: Sequence[Message]) -> None:
    """Raise a `ReplayError` unless the agent is to act and sees what is recorded."""
    if step >= len(recording.turns):
        raise ReplayError(
            f"{recording.place}: has {step} actions, and now {agent} is to act once more; {_FIX}"
        )
    then = recording.turns[step]
    where = f"{recording.place}: action {step + 1}"
    if agent != then.agent:
        raise ReplayError(f"{where} is of {then.agent}, and now {agent} is to act; {_FIX}")
    if len(messages) != len(then.messages):
        raise ReplayError(
            f"{where}, of {agent}: it saw {len(then.messages)} messages, and now {len(messages)}; "
            f"{_FIX}"
        )
    for number, (old, new) in enumerate(zip(then.messages, messages, strict=True), start=1):
        if old != new:
            raise ReplayError(
                f"{where}, of {agent}: message {number} {_difference(old, new)}; {_FIX}"
            )


def _difference(then: Message, now: Message) -> str:
    if then["role"] != now["role"]:
        return f"was of role {then['role']!r} and is of {now['role']!r}"
    old, new = then["content"], now["content"]
    pairs = enumerate(zip(old, new, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    end = start + _EXCERPT
    return f"differs from character {start + 1} on: {old[start:end]!r} then, {new[start:end]!r} now"
