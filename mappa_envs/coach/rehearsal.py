"""An episode played by the scenario's scripts, to see what a coach will have to read."""

from __future__ import annotations

import copy
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.episode import Episode
from mappa_envs.play import play
from mappa_envs.teams import ScenarioTeam


def rehearsed(env: AECEnv[str, Any, str]) -> Episode:
    """Return a whole scripted episode of a copy of an environment."""
    other = copy.deepcopy(env)
    try:
        play(other, ScenarioTeam(other), seed=0)
        episode: Episode = other.unwrapped.episode
        return episode
    finally:
        other.close()
