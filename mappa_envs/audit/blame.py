"""Whether the lowest score of an episode falls on the role that spoilt it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.team_files import TeamScript
from mappa_envs.teams import ScenarioTeam

NOBODY: Final = "nobody"
FULL: Final = 10.0
"""The score below which an action can be blamed."""


def blamed(scores: Sequence[tuple[str, float]]) -> str:
    """Return the role with the lowest score, the earliest of equals; nobody where all are full.

    Args:
        scores: The role and the score, 0 to 10, of each action of an episode, oldest first.

    >>> blamed([("engineer", 10.0), ("modeler", 4.0), ("analyst", 4.0)])
    'modeler'
    """
    role, score = min(scores, key=lambda scored: scored[1], default=(NOBODY, FULL))
    return role if score < FULL else NOBODY


def play_teams(
    env: AECEnv[str, Any, Any],
    teams: Sequence[TeamScript | None],
    seed: int,
    options: Mapping[str, Any],
) -> Iterator[TeamScript | None]:
    """Play one task with several teams, and yield each when it has ended, with `env` at its end.

    What a team does as the first one did before is not played again: equal actions lead to equal
    states, so the episode goes on from a snapshot.

    Args:
        env: An environment with snapshots, wrapped or not.
        teams: Best the one first that the others differ least from; None says the roles' `script`.
        seed: Passed to `reset`.
        options: Passed to `reset`.
    """
    env.reset(seed=seed, options=dict(options))
    start = env.snapshot()
    trunk: list[tuple[str, Any]] = []
    for number, team in enumerate(teams):
        env.restore(start)
        _play_along(env, ScenarioTeam(env, team), trunk, grows=number == 0)
        yield team


def _play_along(
    env: AECEnv[str, Any, Any], policy: ScenarioTeam, trunk: list[tuple[str, Any]], *, grows: bool
) -> None:
    """Play an episode to its end, along the trunk's actions and their snapshots where it can."""
    shared = 0
    while env.unwrapped.end_reason is None:
        agent = env.agent_selection
        action = policy(agent, env.observe(agent))
        if shared < len(trunk) and trunk[shared][0] == action:
            env.restore(trunk[shared][1])
            shared += 1
            continue
        env.step(action)
        shared = len(trunk) + 1
        if grows:
            trunk.append((action, env.snapshot()))
