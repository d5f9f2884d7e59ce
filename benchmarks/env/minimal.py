"""The floor: about the least that a turn-based text environment for three agents can do."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv  # type: ignore[import-untyped]


class MinimalEnv(AECEnv[str, dict[str, str], str]):  # type: ignore[misc]
    """Each agent sees the question and the text before its own; the last text is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = {"name": "minimal_v0", "render_modes": [], "is_parallelizable": False}
        self.possible_agents = ["solver_0", "coder_0", "verifier_0"]
        self._text = spaces.Text(10_000)
        self._observation = spaces.Dict({"prompt": self._text})

    def action_space(self, agent: str) -> spaces.Space[str]:
        """Return the one space of all actions."""
        return self._text

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the one space of all observations."""
        return self._observation

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start over."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None
        self._last = ""

    def observe(self, agent: str) -> dict[str, str]:
        """Return the question and the latest text."""
        return {"prompt": f"What is 2 + 3?\n\n{self._last}"}

    def step(self, action: str | None) -> None:
        """Keep the text; the last one ends the episode and pays everyone."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._last = action or ""
        position = self.agents.index(agent) + 1
        if position < len(self.agents):
            self.agent_selection = self.agents[position]
            return
        self.rewards = dict.fromkeys(self.agents, float(self._last == "5"))
        self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self._deads_step_first()
