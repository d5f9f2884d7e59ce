"""Other ways to drive an environment: all agents through dictionaries, or one seat alone."""

from __future__ import annotations

from mappa_envs.views.parallel import TurnBasedParallelEnv
from mappa_envs.views.seat import SeatEnv

__all__ = ["SeatEnv", "TurnBasedParallelEnv"]
