"""What is compared: the floor, our environment in three wrappings, and other people's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from minimal import MinimalEnv
from peers import PEERS
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.registry import make_pipeline
from mappa_envs.types import Assessment, Turn

Play = Callable[[str], tuple[float, int]]
"""Plays one episode in which every action is the given text; returns its seconds and its turns."""

FLOOR = "minimal AEC"
OURS = "ours, raw"
ENFORCED = "ours + OrderEnforcing"
COACHED = "ours + coach, ledger, OrderEnforcing"

_SENTENCE = "The quick brown fox jumps over the lazy dog, so 2 + 3 = 5.\n"
ACTIONS = {"11 characters": "hello world", "8,000 characters": (_SENTENCE * 140)[:8000]}
"""No tool calls and no boxed answer, so that no process is asked for anything."""


class ConstantCoach:
    """Gives 6 of 10, at once."""

    id = "constant"

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return the constant."""
        return Assessment(6.0, "constant")


ENVS: dict[str, Callable[..., AECEnv[str, Any, str]]] = {
    FLOOR: MinimalEnv,
    OURS: lambda **tables: make_pipeline("mathchat", **tables),
    ENFORCED: lambda **tables: OrderEnforcingWrapper(make_pipeline("mathchat", **tables)),
    COACHED: lambda **tables: OrderEnforcingWrapper(
        make_pipeline("mathchat", coach=ConstantCoach(), **tables)
    ),
}
SUBJECTS = (*ENVS, *PEERS)


def play(env: AECEnv[str, Any, str], action: str) -> tuple[float, int]:
    """Play the plain PettingZoo loop to its end, dead turns included."""
    turns = 0
    start = time.perf_counter()
    env.reset()
    for _ in env.agent_iter():
        _, _, terminated, truncated, _ = env.last()
        over = terminated or truncated
        turns += not over
        env.step(None if over else action)
    return time.perf_counter() - start, turns
