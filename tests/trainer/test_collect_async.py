from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from relay import TEAM, Relay

from mappa_trainer.collect import Play, collect, plays
from mappa_trainer.collect_async import collect_async
from mappa_trainer.policy import Conversation
from mappa_trainer.types import Generation, Sampling

SAMPLING = dict.fromkeys(TEAM, Sampling(1.0, 8))


def say(seed: int) -> Generation:
    """An action that depends on its seed alone."""
    return Generation((1,), (seed % 97,), (-0.5,), f"<{seed}>", "stop")


@dataclass
class Server:
    """A policy that answers when it is let to, and knows how much it has to do."""

    open: asyncio.Event | None = None
    waiting: int = 0
    most: int = 0
    threads: set[int] = field(default_factory=set)

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Generation]:
        return [say(seed) for seed in seeds]

    async def act_alone(
        self, conversation: Conversation, seed: int, sampling: Sampling
    ) -> Generation:
        self.threads.add(threading.get_ident())
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await (self.open.wait() if self.open else asyncio.sleep(0))
        self.waiting -= 1
        return say(seed)


def team() -> dict[str, Server]:
    return {name: Server() for name in TEAM}


@pytest.mark.parametrize("at_a_time", [1, 3, 8])
def test_episodes_are_those_of_the_lockstep(at_a_time: int) -> None:
    orders = [("ann", "bob", "ann"), ("cat",), TEAM * 2]
    todo = [*plays(1, "train", 0, 4, "train"), *plays(1, "train", 0, 4, "train", sample=1)]
    expected = collect([Relay(orders)], todo, team(), SAMPLING)
    found = collect_async([Relay(orders) for _ in range(at_a_time)], todo, team(), SAMPLING)
    assert found == expected
    assert len({t.generation.text for e in found for t in e.transitions}) == sum(
        len(e.transitions) for e in found
    )


def test_policies_act_in_the_thread_that_collects() -> None:
    """A tokenizer must not be used by several threads at a time."""
    policies = team()
    collect_async([Relay(), Relay()], plays(0, "train", 0, 4, "train"), policies, SAMPLING)
    assert {t for policy in policies.values() for t in policy.threads} == {threading.get_ident()}


def test_as_many_episodes_are_in_flight_as_there_are_environments() -> None:
    """Nobody is answered until three wait, and then the event stays set."""

    class Patient(Server):
        async def act_alone(self, *arguments: Any) -> Generation:
            self.open = self.open or asyncio.Event()
            if self.waiting == 2:
                self.open.set()
            return await super().act_alone(*arguments)

    ann = Patient()
    envs = [Relay([("ann", "bob")]) for _ in range(3)]
    todo = plays(0, "train", 0, 9, "train")
    collect_async(envs, todo, {**team(), "ann": ann}, SAMPLING)
    assert ann.most == 3


def test_a_slow_agent_of_one_episode_holds_up_no_other_episode() -> None:
    """Bob's answer in one episode comes when the other episode is over."""

    class Last(Server):
        async def act_alone(self, *arguments: Any) -> Generation:
            self.open = self.open or asyncio.Event()
            return await super().act_alone(*arguments)

    class Opens(Server):
        async def act_alone(self, *arguments: Any) -> Generation:
            if bob.open:
                bob.open.set()
            return await super().act_alone(*arguments)

    bob = Last()
    policies = {"ann": Server(), "bob": bob, "cat": Opens()}
    orders = [("bob",), ("ann", "ann", "ann", "cat")]
    todo = [Play(0, 1, {"task": 0}), Play(1, 2, {"task": 1})]
    found = collect_async([Relay(orders), Relay(orders)], todo, policies, SAMPLING)
    assert [len(episode.transitions) for episode in found] == [1, 4]


def test_a_slow_tool_of_one_episode_holds_up_no_other_episode() -> None:
    """The first episode's tool returns when the second episode is over."""
    over = threading.Event()

    class Slow(Relay):
        def step(self, action: str | None) -> None:  # type: ignore[override]
            if self.task == 0 and not self.terminations[self.agent_selection]:
                assert over.wait(30), "the second episode waits for the first one's tool"
            super().step(action)
            if self.task == 1 and not self.left:
                over.set()

    orders = [("ann",), TEAM]
    todo = [Play(0, 1, {"task": 0}), Play(1, 2, {"task": 1})]
    found = collect_async([Slow(orders), Slow(orders)], todo, team(), SAMPLING)
    assert [len(episode.transitions) for episode in found] == [1, 3]


@pytest.mark.parametrize("where", ["policy", "environment", "progress"])
def test_an_error_ends_the_collection_as_it_is(where: str) -> None:
    class Broken(Server):
        async def act_alone(self, *arguments: Any) -> Generation:
            raise ConnectionError(where)

    class BrokenRelay(Relay):
        def step(self, action: str | None) -> None:  # type: ignore[override]
            raise ConnectionError(where)

    def check(text: str) -> None:
        if where == "progress" and text == "1 of 3 episodes are done":
            raise ConnectionError(where)

    policies: Mapping[str, Server] = team() | ({"bob": Broken()} if where == "policy" else {})
    env = BrokenRelay() if where == "environment" else Relay()
    todo = plays(0, "train", 0, 3, "train")
    with pytest.raises(ConnectionError, match=f"^{where}$"):
        collect_async([env], todo, policies, SAMPLING, check)
