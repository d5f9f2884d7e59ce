"""The plain PettingZoo loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.teams import ScriptedTeam
from mappa_envs.types import Message

Policy = Callable[[str, Mapping[str, tuple[Message, ...]]], str]
"""What acts for every agent: `policy(agent, observation)` returns the action."""


def play(
    env: AECEnv[str, Any, Any],
    actions: Mapping[str, Sequence[str]] | Policy,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Play one episode to its end, dead turns included.

    Args:
        env: The environment, wrapped or not.
        actions: The texts of each agent in order, or a policy.
        seed: Passed to `reset`.
        options: Passed to `reset`.

    Returns:
        For each agent, the reward of every `last()` in order; its sum is all the agent was paid.
    """
    policy = ScriptedTeam(actions) if isinstance(actions, Mapping) else actions
    env.reset(seed=seed, options=options)
    paid: dict[str, list[float]] = {agent: [] for agent in env.possible_agents}
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        paid[agent].append(reward)
        env.step(None if terminated or truncated else policy(agent, observation))
    return paid
