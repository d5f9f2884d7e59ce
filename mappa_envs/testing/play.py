"""A whole episode in one line of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.play import Policy
from mappa_envs.play import play as play_episode
from mappa_envs.teams import ScriptedTeam


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
    played = play_episode(env, policy, seed, options)
    return {agent: list(rewards) for agent, rewards in played.rewards.items()}
