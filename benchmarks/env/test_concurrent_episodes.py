"""Many coached episodes at a time on one event loop, beside the time they would take for free."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import report
from pettingzoo import AECEnv
from pytest_benchmark.fixture import BenchmarkFixture
from subjects import ACTIONS, ConstantCoach

from mappa_envs.coach.ledger import on_grid
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.play import Observation, Play, play_many
from mappa_envs.registry import make_pipeline
from mappa_envs.types import Assessment, Turn

POLICY_S = COACH_S = 0.05
TICK_S = 0.005
ACTIONS_OF_AN_EPISODE = 3
IDEAL_S = {
    "each step waits for the coach": ACTIONS_OF_AN_EPISODE * (POLICY_S + COACH_S),
    "deferred coaching": ACTIONS_OF_AN_EPISODE * POLICY_S + COACH_S,
}
"""Seconds of an episode in which nothing but waiting takes time."""


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


@pytest.mark.parametrize("mode", IDEAL_S)
@pytest.mark.parametrize("made", ["forked", "made anew"])
@pytest.mark.parametrize("episodes", [64, 256, 512])
def test_concurrent_episodes(
    benchmark: BenchmarkFixture, episodes: int, made: str, mode: str
) -> None:
    """All start at once; their environments are forks of one, or each is made from its files."""
    group, row = f"coached episodes at once, {mode}", f"{episodes} episodes, {made}"
    benchmark.group, benchmark.name = group, row
    episodes = 8 if benchmark.disabled else episodes
    make = partial(_make, deferred=mode == "deferred coaching")
    if made == "forked":
        make = make().fork
    lags: list[float] = []
    cpu_s: list[float] = []

    def play_all() -> None:
        before = time.process_time()
        lags.extend(asyncio.run(_play_all(episodes, make)))
        cpu_s.append(time.process_time() - before)

    benchmark.pedantic(play_all, rounds=5, warmup_rounds=1)
    if not benchmark.disabled:
        report.keep_constant(group, "ideal", IDEAL_S[mode])
        report.keep(benchmark, group, row)
        middle, worst = 1000 * statistics.median(lags), 1000 * max(lags)
        report.note(
            group,
            f"{row}: at least {1000 * min(cpu_s):.0f} ms of processor time; "
            f"the event loop was late by {middle:.1f} ms, at most {worst:.0f} ms",
        )


def _make(deferred: bool) -> AECEnv[str, Any, str]:
    return CoachWrapper(make_pipeline("mathchat"), SleepingCoach(), deferred=deferred)


async def _play_all(episodes: int, make: Callable[[], AECEnv[str, Any, str]]) -> list[float]:
    """Play; return by how many seconds each tick of the event loop was late."""
    lags: list[float] = []
    ticker = asyncio.create_task(_tick(lags))
    plays = [Play(seed) for seed in range(episodes)]
    played = await play_many(make, sleeping_policy, plays, at_once=episodes)
    ticker.cancel()
    assert len(played) == episodes
    for one in played:
        assert {sum(paid) for paid in one.rewards.values()} == {on_grid(0.6)}
    return lags


async def _tick(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(time.perf_counter() - due)
