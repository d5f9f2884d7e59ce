"""Collecting: plays episodes in lockstep, so that each policy acts for many at once.

Knows PettingZoo and plain data alone. The reward of an action is what the environment's ledger
says at the agent's dead turn (`info["ledger"]`, one entry per action with `status` and
`reward`); without a ledger it is what `last()` paid when the agent was selected next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_trainer.errors import TrainingError
from mappa_trainer.policy import Policy
from mappa_trainer.seeds import derive_seed
from mappa_trainer.types import Episode, Generation, Reply, Sampling, Transition

Env: TypeAlias = AECEnv[str, Any, Any]


@dataclass(frozen=True, slots=True)
class Play:
    """One episode to be played, e.g. `Play(3, 91, {"split": "train", "task": 3})`."""

    index: int
    seed: int
    """Seeds the environment and, by derivation, every action."""
    options: Mapping[str, Any]
    sample: int = 0
    """Which sample of its task this is: all start alike, and each draws actions of its own."""


def plays(
    seed: int, purpose: str, first: int, count: int, split: str, sample: int = 0
) -> list[Play]:
    """Return plays of `count` tasks of a split, counting on from task `first`.

    The plays of one `sample` follow those of the last. All samples of a task have its seed.
    """
    return [
        Play(
            index=sample * count + i,
            seed=derive_seed(seed, purpose, first + i),
            options={"split": split, "task": first + i},
            sample=sample,
        )
        for i in range(count)
    ]


def collect(
    envs: Sequence[Env],
    todo: Sequence[Play],
    policies: Mapping[str, Policy],
    sampling: Mapping[str, Sampling],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Episode]:
    """Play every episode of `todo` and return them in its order.

    Args:
        envs: Environments of one kind; so many episodes run at a time.
        todo: The episodes.
        policies: One for each agent id of the environments.
        sampling: For each agent id.
        progress: Called with a few words before each batch of actions; may raise to stop.
    """
    episodes: list[Episode] = []
    for start in range(0, len(todo), len(envs)):
        chunk = todo[start : start + len(envs)]
        tables = [Table(env, play) for env, play in zip(envs, chunk, strict=False)]
        with workers(os.cpu_count() or 1) as pool:
            list(pool.map(Table.begin, tables))
            for agent, waiting in _rounds(tables):
                progress(f"{agent} acts in {len(waiting)} episodes")
                acted = policies[agent].act(
                    [table.messages for table in waiting],
                    [table.action_seed() for table in waiting],
                    sampling[agent],
                )
                list(pool.map(Table.act, waiting, acted))
        episodes += [table.episode() for table in tables]
    return episodes


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads for what environments do; what ends the block early does not wait for them."""
    pool = ThreadPoolExecutor(max_workers=count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _rounds(tables: Sequence[Table]) -> Iterator[tuple[str, list[Table]]]:
    """Yield an agent and the episodes that wait for it, earliest agent first, until none waits.

    Draining the earliest agent lets later ones gather, so each policy acts in large batches.
    """
    team = tables[0].env.possible_agents
    while live := [table for table in tables if table.agent is not None]:
        agent = min((str(table.agent) for table in live), key=team.index)
        yield agent, [table for table in live if table.agent == agent]


@dataclass
class _Action:
    """An action whose reward is not known yet."""

    agent: str
    index: int
    messages: tuple[Mapping[str, str], ...]
    generation: Generation | Reply
    paid: float | None = None


@dataclass
class Table:
    """One environment with the episode being played in it."""

    env: Env
    play: Play
    agent: str | None = None
    """Who is to act; None once the episode is over."""
    messages: tuple[Mapping[str, str], ...] = ()
    actions: list[_Action] = field(default_factory=list)
    returns: dict[str, float] = field(default_factory=dict)
    last_infos: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    truncated: bool = False

    def begin(self) -> None:
        """Reset the environment and find out who acts first."""
        self.env.reset(seed=self.play.seed, options=dict(self.play.options))
        self.returns = dict.fromkeys(self.env.possible_agents, 0.0)
        self._advance()

    def act(self, generation: Generation | Reply) -> None:
        """Take one action and find out who acts next."""
        assert self.agent is not None
        index = len(self._own(self.agent))
        self.actions.append(_Action(self.agent, index, self.messages, generation))
        self.env.step(generation.text)
        self._advance()

    def action_seed(self) -> int:
        """Return the seed of the action that is to be taken now."""
        assert self.agent is not None
        sample = [self.play.sample] if self.play.sample else []
        return derive_seed(self.play.seed, "act", *sample, self.agent, len(self._own(self.agent)))

    def episode(self) -> Episode:
        """Return the finished episode."""
        any_info = next(iter(self.last_infos.values()))
        return Episode(
            index=self.play.index,
            seed=self.play.seed,
            options=dict(self.play.options),
            transitions=tuple(self._transition(action) for action in self.actions),
            outcome=any_info.get("outcome"),
            returns=self.returns,
            end_reasons={
                agent: str(info.get("end_reason", "ended"))
                for agent, info in self.last_infos.items()
            },
            task=any_info.get("task", {}),
            truncated=self.truncated,
        )

    def _own(self, agent: str) -> list[_Action]:
        return [action for action in self.actions if action.agent == agent]

    def _advance(self) -> None:
        """Play dead turns until an agent is to act or nobody is left."""
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            self.returns[agent] += float(reward)
            if own := self._own(agent):
                own[-1].paid = float(reward)
            if not (terminated or truncated):
                self.agent, self.messages = agent, observation["messages"]
                return
            self.last_infos[agent] = info
            self.truncated = self.truncated or truncated
            self.env.step(None)
        self.agent = None

    def _transition(self, action: _Action) -> Transition:
        info = self.last_infos[action.agent]
        ledger, turns = info.get("ledger"), info.get("turns")
        entry = None
        reward = action.paid
        if ledger is not None:
            if len(ledger) != len(self._own(action.agent)):
                raise TrainingError(
                    f"the ledger of {action.agent} has {len(ledger)} entries for "
                    f"{len(self._own(action.agent))} actions in the episode of seed "
                    f"{self.play.seed}; it must have one for each"
                )
            entry = ledger[action.index]
            reward = entry["reward"] if entry["status"] == "scored" else None
        return Transition(
            agent=action.agent,
            index=action.index,
            messages=action.messages,
            generation=action.generation,
            reward=reward,
            ledger=entry,
            turn=turns[action.index] if turns is not None else None,
        )
