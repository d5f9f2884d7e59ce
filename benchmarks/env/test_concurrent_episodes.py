"""Many coached episodes at a time on one event loop, beside the time they would take for free."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import pytest
import report
from pettingzoo import AECEnv
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ACTIONS, ConstantCoach

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.play import Observation, Play, play_many
from mappa_envs.registry import make_pipeline
from mappa_envs.types import Assessment, Turn

POLICY_S = COACH_S = 0.05
TICK_S = 0.005
ACTIONS_OF_AN_EPISODE = 3
MODES = {
    "each step waits for the coach": ({}, ACTIONS_OF_AN_EPISODE * (POLICY_S + COACH_S)),
    "deferred coaching": ({"deferred": True}, ACTIONS_OF_AN_EPISODE * POLICY_S + COACH_S),
}
"""Each mode's settings, and the seconds of an episode in which nothing but waiting takes time."""


class SleepingCoach(ConstantCoach):
    """Takes its time, on the event loop."""

    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return the constant after a while."""
        await asyncio.sleep(COACH_S)
        return self.assess(turn, context)


async def sleeping_policy(agent: str, observation: Observation) -> str:
    """Say something of 8,000 characters after a while."""
    await asyncio.sleep(POLICY_S)
    return ACTIONS["8,000 characters"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episodes", [64, 256, 512])
def test_concurrent_episodes(benchmark: BenchmarkFixture, episodes: int, mode: str) -> None:
    """All start at once, in new environments; wall time, and how late the event loop is."""
    settings, ideal_s = MODES[mode]
    group = f"coached episodes at once, {mode}"
    row = f"{episodes} episodes"
    benchmark.group, benchmark.name = group, row
    lags: list[float] = []

    def play_all() -> None:
        lags.extend(asyncio.run(_play_all(episodes, settings)))

    benchmark.pedantic(play_all, rounds=5, warmup_rounds=1)
    if not benchmark.disabled:
        report.keep_constant(group, "ideal", ideal_s)
    report.keep(benchmark, group, row)
    if not benchmark.disabled:
        middle, worst = 1000 * statistics.median(lags), 1000 * max(lags)
        report.note(
            group, f"{row}: the event loop was late by {middle:.1f} ms, at most {worst:.1f} ms"
        )


async def _play_all(episodes: int, settings: Mapping[str, Any]) -> list[float]:
    """Play; return by how many seconds each tick of the event loop was late."""

    def make() -> AECEnv[str, Any, str]:
        return make_pipeline("mathchat", coach=SleepingCoach(), **settings)

    lags: list[float] = []
    ticker = asyncio.create_task(_tick(lags))
    plays = [Play(seed) for seed in range(episodes)]
    played = await play_many(make, sleeping_policy, plays, at_once=episodes)
    ticker.cancel()
    paid = {tuple(map(math.fsum, one.rewards.values())) for one in played}
    assert len(played) == episodes
    assert len(paid) == 1, paid
    return lags


async def _tick(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(time.perf_counter() - due)
