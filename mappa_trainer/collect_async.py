"""Collecting without waiting for each other: every episode goes on as soon as it can.

For policies behind servers, which batch what comes in by themselves: episodes are at different
stages, so the engines of different agents work at the same time, and no episode waits for another's
tool or coach. In-process models gain more from the lockstep of `mappa_trainer.collect`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mappa_trainer.collect import Env, Play, Table, workers
from mappa_trainer.policy import Conversation
from mappa_trainer.types import Episode, Generation, Sampling


class AsyncPolicy(Protocol):
    """Acts for one seat, for many episodes at a time; called in one thread alone."""

    async def act_alone(
        self, conversation: Conversation, seed: int, sampling: Sampling
    ) -> Generation:
        """Sample one action, which depends on nothing but the arguments and the weights."""
        ...


def collect_async(
    envs: Sequence[Env],
    todo: Sequence[Play],
    policies: Mapping[str, AsyncPolicy],
    sampling: Mapping[str, Sampling],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Episode]:
    """Play every episode of `todo` and return them in its order; see `collect`.

    What an episode is does not depend on which others run beside it: tasks, seeds and order are
    those of `collect`. An error in one episode ends the others.
    """
    with workers(len(envs)) as pool:
        players = _Players(envs, todo, policies, sampling, progress, pool)
        return asyncio.run(players.play())


@dataclass
class _Players:
    """Plays each episode in an environment that is free."""

    envs: Sequence[Env]
    todo: Sequence[Play]
    policies: Mapping[str, AsyncPolicy]
    sampling: Mapping[str, Sampling]
    progress: Callable[[str], None]
    threads: ThreadPoolExecutor
    """One for each environment, so that no tool or coach waits for another."""
    done: int = 0

    async def play(self) -> list[Episode]:
        """Play all, as many at a time as there are environments."""
        free: asyncio.Queue[Env] = asyncio.Queue()
        for env in self.envs:
            free.put_nowait(env)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._when_free(free, play)) for play in self.todo]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _when_free(self, free: asyncio.Queue[Env], play: Play) -> Episode:
        env = await free.get()
        try:
            episode = await self._episode(Table(env, play))
        finally:
            free.put_nowait(env)
        self.done += 1
        return episode

    async def _episode(self, table: Table) -> Episode:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self.threads)
        await in_thread(table.begin)
        while (agent := table.agent) is not None:
            self.progress(f"{self.done} of {len(self.todo)} episodes are done")
            generation = await self.policies[agent].act_alone(
                table.messages, table.action_seed(), self.sampling[agent]
            )
            await in_thread(table.act, generation)
        return table.episode()
