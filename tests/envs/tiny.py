"""A small AEC text environment by hand: the least there is to one, and one with everything."""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from mappa_envs.spaces import Utf8Text, is_text, observation_space

ENV_STATE = (
    *("agents", "agent_selection", "rewards", "_cumulative_rewards", "terminations"),
    *("truncations", "infos", "_skip_agent_selection"),
    *("task", "conversations", "ledger", "rng", "turn"),
)


class TinyEnv(AECEnv[str, Any, str]):
    """Two agents ask and tell about a number, two turns each; texts are paid by their length."""

    metadata: ClassVar[dict[str, Any]] = {
        "name": "tiny_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
    }
    turns = 4
    tasks: ClassVar[dict[str, tuple[int, ...]]] = {"train": (3, 4, 5), "test": (6, 7)}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.possible_agents = ["asker_0", "teller_0"]
        self.agents: list[str] = []
        self.rng: np.random.Generator | None = None
        self._spaces = {agent: (Utf8Text(), observation_space()) for agent in self.possible_agents}

    def action_space(self, agent: str) -> spaces.Space[str]:
        return self._spaces[agent][0]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        rng = np.random.default_rng(seed) if seed is not None or self.rng is None else self.rng
        self.task = self.choose_task(rng, options or {})
        self.rng = rng
        self.begin()

    def choose_task(self, rng: np.random.Generator, options: dict[str, Any]) -> int:
        split, index = options.get("split", "train"), options.get("task", 0)
        if split not in self.tasks:
            raise ValueError(f"split is {split!r}; it must be one of {list(self.tasks)}")
        if not isinstance(index, int) or index < 0:
            raise ValueError(f"task is {index!r}; it must be an index from 0")
        numbers = self.tasks[split]
        return numbers[(index if "task" in options else int(rng.integers(99))) % len(numbers)]

    def begin(self) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self.info(agent) for agent in self.agents}
        self._skip_agent_selection = None
        question = {"role": "user", "content": f"Say {self.task + int(self.rng.integers(9))}."}
        self.conversations = {agent: [question.copy()] for agent in self.agents}
        self.turn = 0

    def info(self, agent: str) -> dict[str, Any]:
        return {"role": agent.removesuffix("_0"), "task": {"number": self.task}}

    def last_info(self, agent: str) -> dict[str, Any]:
        return {**self.info(agent), "end_reason": "completed"}

    def observe(self, agent: str) -> dict[str, Any]:
        return {"messages": tuple(message.copy() for message in self.conversations[agent])}

    def step(self, action: str | None) -> None:
        if not self.agents:
            raise ValueError("step() outside an episode; call reset()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if action is not None:
                raise ValueError(f"{agent} has finished; its action must be None")
            self._was_dead_step(None)
            return
        self.check(agent, action)
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.act(agent, action)
        self._accumulate_rewards()

    def check(self, agent: str, action: object) -> None:
        if not is_text(action):
            raise TypeError(f"action of {agent} is {action!r:.50}; it must be text")

    def act(self, agent: str, action: str) -> None:
        self.turn += 1
        self.hear(agent, action)
        self.pay(agent, len(action) % 5 / 4)
        if self.turn < self.turns:
            self.agent_selection = self.possible_agents[self.turn % 2]
        else:
            self.end()

    def hear(self, agent: str, action: str) -> None:
        self.conversations[agent].append({"role": "assistant", "content": action})
        for other in self.agents:
            self.conversations[other].append({"role": "user", "content": f"{agent}: {action}"})

    def pay(self, agent: str, reward: float) -> None:
        self.rewards[agent] += reward

    def end(self) -> None:
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: self.last_info(agent) for agent in self.agents}
        self._deads_step_first()

    def render(self) -> str | None:
        text = json.dumps(self.conversations)
        if self.render_mode == "human":
            sys.stdout.write(text)
            return None
        return text

    def close(self) -> None:
        pass

    def __deepcopy__(self, memo: object) -> TinyEnv:
        raise TypeError("this environment has one copy; make another")

    def __copy__(self) -> TinyEnv:
        raise TypeError("a shallow copy would share the conversations; make another")

    def __reduce__(self) -> Any:
        raise TypeError("an environment stays in its process; make it again in the other one")


class RichEnv(TinyEnv):
    """The same with a ledger, snapshots and forks."""

    def begin(self) -> None:
        self.ledger: list[SimpleNamespace] = []
        super().begin()

    def pay(self, agent: str, reward: float) -> None:
        super().pay(agent, reward)
        self.ledger.append(self.entry(agent, reward))

    def entry(self, agent: str, reward: float) -> SimpleNamespace:
        return SimpleNamespace(agent=agent, reward=reward, status="scored")

    def last_info(self, agent: str) -> dict[str, Any]:
        own = [vars(entry).copy() for entry in self.ledger if entry.agent == agent]
        return {**super().last_info(agent), "ledger": own}

    def snapshot(self) -> dict[str, Any]:
        return copy.deepcopy({name: getattr(self, name) for name in ENV_STATE})

    def restore(self, snapshot: dict[str, Any]) -> None:
        for name, value in copy.deepcopy(snapshot).items():
            setattr(self, name, value)

    def fork(self) -> RichEnv:
        return self.twin()

    def __deepcopy__(self, memo: object) -> RichEnv:
        return self.twin()

    def twin(self) -> RichEnv:
        other = type(self)(self.render_mode)
        other.restore(self.snapshot())
        return other
