"""An environment in which agents act in a given order, for tests of what plays environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv

TEAM = ("ann", "bob", "cat")


class Relay(AECEnv[str, Any, str]):
    """Agents act in a given order; the n-th action of the episode, from 1, is paid n.

    Args:
        orders: Who acts, for each value of the reset option `task`.
        ledger: From an agent and its number of actions to its `info["ledger"]`.
        bonus: Paid to every agent with the last action.
    """

    def __init__(
        self,
        orders: Sequence[Sequence[str]] = (TEAM * 2,),
        ledger: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        bonus: float = 0.0,
    ) -> None:
        super().__init__()
        self.possible_agents = list(TEAM)
        self.orders, self.ledger, self.bonus = orders, ledger, bonus
        self.played: list[Mapping[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({})

    def action_space(self, agent: str) -> spaces.Space[str]:
        return spaces.Text(99)  # type: ignore[return-value]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.played.append({"seed": seed, "options": options})
        self.task = (options or {}).get("task", 0)
        self.left = list(self.orders[self.task % len(self.orders)])
        self.texts: list[str] = []
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self.agent_selection = self.left.pop(0)

    def observe(self, agent: str) -> Any:
        content = f"task {self.task}: " + " ".join(self.texts)
        return {"messages": ({"role": "user", "content": content},)}

    def step(self, action: str | None) -> None:  # type: ignore[override]
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)  # type: ignore[arg-type]
            return
        assert action is not None
        self.texts.append(action)
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.rewards[agent] = float(len(self.texts))
        if self.left:
            self.agent_selection = self.left.pop(0)
        else:
            self._end()
        self._accumulate_rewards()

    def _end(self) -> None:
        for agent in self.agents:
            self.rewards[agent] += self.bonus
            self.terminations[agent] = True
            if self.ledger is not None:
                self.infos[agent]["ledger"] = self.ledger[agent]
        self._deads_step_first()
