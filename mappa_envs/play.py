"""Playing whole episodes: one in a plain loop, or many at a time on an event loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.types import Message

Observation = Mapping[str, tuple[Message, ...]]
Policy = Callable[[str, Observation], str]
"""What acts for every agent: `policy(agent, observation)` returns the action."""
AsyncPolicy = Callable[[str, Observation], Awaitable[str]]
"""A policy that is awaited, e.g. one that asks a server."""


@dataclass(frozen=True, slots=True)
class Play:
    """One episode to be played, e.g. `Play(7, {"split": "test", "task": 3})`."""

    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Played:
    """What became of an episode."""

    rewards: Mapping[str, tuple[float, ...]]
    """For each agent, the reward of every `last()` in order; the sum is all it was paid."""
    infos: Mapping[str, Mapping[str, Any]]
    """Each agent's last info: outcome, turns, end reason and, with a coach, ledger."""


def play(
    env: AECEnv[str, Any, Any],
    policy: Policy,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Played:
    """Play one episode to its end, dead turns included.

    Args:
        env: An environment, wrapped or not.
        policy: Acts for every agent.
        seed: Passed to `reset`.
        options: Passed to `reset`.
    """
    record = _Record(env, seed, options)
    while (observation := record.next_observation()) is not None:
        env.step(policy(env.agent_selection, observation))
    return record.played()


async def aplay(
    env: AECEnv[str, Any, Any],
    policy: AsyncPolicy,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Played:
    """Play one episode as `play` does, without holding up the event loop.

    Args:
        env: An environment with `astep`, wrapped or not.
        policy: Awaited for every action.
        seed: Passed to `reset`.
        options: Passed to `reset`.
    """
    record = _Record(env, seed, options)
    while (observation := record.next_observation()) is not None:
        await env.astep(await policy(env.agent_selection, observation))
    return record.played()


async def play_many(
    make_env: Callable[[], AECEnv[str, Any, Any]],
    policy: AsyncPolicy,
    plays: Iterable[Play],
    *,
    at_once: int = 64,
) -> list[Played]:
    """Play many episodes at a time, and return them in the order of `plays`.

    When it is cancelled, or one episode fails, all of them end, and their environments are closed.

    Args:
        make_env: Makes an environment with `astep`; called once, the others are copies of it.
        policy: Awaited for every action of every episode.
        plays: The episodes.
        at_once: How many episodes are under way at a time. Programs share the cores, and their
            deadlines are wall-clock time: where agents run heavy programs, keep it small.

    Raises:
        ValueError: `at_once` is less than 1.
    """
    if at_once < 1:
        raise ValueError(f"at_once is {at_once}; play at least 1 episode at a time")
    todo = list(plays)
    waiting = iter(enumerate(todo))
    done: dict[int, Played] = {}

    async def one_after_another(env: AECEnv[str, Any, Any]) -> None:
        for index, play in waiting:
            done[index] = await aplay(env, policy, play.seed, play.options)

    with ExitStack() as closing:
        first = make_env()
        closing.callback(first.close)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(one_after_another(first))
                for _ in range(1, min(at_once, len(todo))):
                    other = copy.deepcopy(first)
                    closing.callback(other.close)
                    group.create_task(one_after_another(other))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
    return [done[index] for index in range(len(todo))]


class _Record:
    """Plays dead turns and notes what `last()` says."""

    def __init__(
        self,
        env: AECEnv[str, Any, Any],
        seed: int | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._env = env
        env.reset(seed=seed, options=dict(options or {}))
        self._rewards: dict[str, list[float]] = {agent: [] for agent in env.possible_agents}
        self._infos: dict[str, Mapping[str, Any]] = {}

    def next_observation(self) -> Observation | None:
        """Return what the agent that is to act sees; None after the last dead turn."""
        while self._env.agents:
            agent = self._env.agent_selection
            observation, reward, terminated, truncated, info = self._env.last()
            self._rewards[agent].append(reward)
            self._infos[agent] = info
            if not (terminated or truncated):
                seen: Observation = observation
                return seen
            self._env.step(None)
        return None

    def played(self) -> Played:
        return Played({agent: tuple(own) for agent, own in self._rewards.items()}, self._infos)
