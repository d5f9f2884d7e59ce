"""Collecting in lockstep and each episode by itself: time, and how long engines have no work.

Three engines only sleep, as long as an answer takes: log-normal times, which depend on the action's
seed alone. Each answers any number of requests at a time, as servers that batch do. In lockstep one
agent's engine is asked for all waiting episodes, and the longest answer is waited for. Environments
are MathChat with texts that call no tool, so nearly all of the time is the engines'.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import pettingzoo
import side_by_side
from pytest_benchmark.fixture import BenchmarkFixture
from side_by_side import Side, compare

import mappa_envs  # noqa: F401  registers the environment
from mappa_trainer.collect import collect, plays
from mappa_trainer.collect_async import collect_async
from mappa_trainer.policy import Conversation
from mappa_trainer.types import Generation, Sampling

AT_A_TIME, EPISODES = 16, 64
FEW = 4
"""Episodes of a smoke run."""
MEDIAN_S, SIGMA = 0.1, 0.6


def answer_s(seed: int) -> float:
    """Draw how long an answer takes."""
    return random.Random(seed).lognormvariate(math.log(MEDIAN_S), SIGMA)


def answer(seed: int) -> Generation:
    """Return an action that calls no tool."""
    return Generation((1,), (2,), (-0.5,), f"I pass, {seed}.", "stop")


@dataclass
class SleepingEngine:
    """A policy that answers after a while, and knows how long it was at work."""

    busy_s: float = 0.0
    _in_flight: int = 0
    _since: float = field(default=0.0)

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Generation]:
        """Answer all when the last is ready."""
        longest = max(map(answer_s, seeds))
        time.sleep(longest)
        self.busy_s += longest
        return list(map(answer, seeds))

    async def act_alone(
        self, conversation: Conversation, seed: int, sampling: Sampling
    ) -> Generation:
        """Answer when it is ready."""
        if not self._in_flight:
            self._since = time.perf_counter()
        self._in_flight += 1
        await asyncio.sleep(answer_s(seed))
        self._in_flight -= 1
        if not self._in_flight:
            self.busy_s += time.perf_counter() - self._since
        return answer(seed)


def test_collection(benchmark: BenchmarkFixture) -> None:
    """Both play the same episodes, and how long each takes."""
    count = FEW if benchmark.disabled else EPISODES
    envs = [pettingzoo.make("aec", "mappa/MathChat-v0") for _ in range(min(count, AT_A_TIME))]
    agents = envs[0].possible_agents
    todo = plays(0, "train", 0, count, "train")
    sampling = dict.fromkeys(agents, Sampling(1.0, 8))
    idle: dict[str, list[float]] = {"in lockstep": [], "each by itself": []}
    played = {}

    def run(name: str) -> None:
        engines = {agent: SleepingEngine() for agent in agents}
        began = time.perf_counter()
        play = collect if name == "in lockstep" else collect_async
        played[name] = play(envs, todo, engines, sampling)
        took = time.perf_counter() - began
        idle[name].append(1 - fmean(engine.busy_s for engine in engines.values()) / took)

    sides = {name: Side(lambda name=name: run(name), count) for name in idle}
    title = f"{count} episodes, {len(envs)} at a time, engines that sleep"
    compare(benchmark, title, "episodes", sides, rounds=3, clock=time.perf_counter)
    for env in envs:
        env.close()
    assert played["in lockstep"] == played["each by itself"]
    if benchmark.enabled:
        side_by_side.NOTES.append(
            "engines without work: "
            + ", ".join(f"{name} {fmean(shares):.0%} of the time" for name, shares in idle.items())
        )
