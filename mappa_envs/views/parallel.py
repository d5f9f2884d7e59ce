"""PettingZoo's parallel interface to a team that acts in turns."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from mappa_envs.errors import ActionError
from mappa_envs.play import Observation
from mappa_envs.views.view import View

Step = tuple[
    dict[str, Observation],
    dict[str, float],
    dict[str, bool],
    dict[str, bool],
    dict[str, dict[str, Any]],
]


class TurnBasedParallelEnv(View, ParallelEnv[str, Observation, str]):  # type: ignore[misc]
    """One turn of the team per step: the agent whose turn it is acts, the others wait.

    Wraps a `PipelineEnv`, with a coach and other PettingZoo wrappers around it or without.
    `infos[agent]["active_agent"]` says who acts next, as does the property; None once the episode
    is over. `step` reads the action of that agent and ignores all others.

    The step that ends the episode plays the dead turns too. Its dictionaries hold every agent's
    last reward and last info, with `end_reason`, `outcome` and, of a coached team, `ledger`; and
    `agents` is empty. From then on `step` returns five empty dictionaries until `reset`.

    The parallel rewards of an agent add up to exactly what `last()` would have paid it.
    """

    def __init__(self, aec_env: AECEnv[str, Observation, str]) -> None:
        self.aec_env = aec_env
        self.metadata: dict[str, Any] = copy.deepcopy(aec_env.metadata)
        self.possible_agents = list(aec_env.possible_agents)
        self.render_mode: str | None = aec_env.render_mode

    @property
    def agents(self) -> list[str]:
        """The agents of the running episode; none before `reset` and after the end."""
        return [agent for agent in getattr(self.aec_env, "agents", ()) if not self._is_done(agent)]

    @property
    def active_agent(self) -> str | None:
        """The agent whose action the next `step` takes; None where there is no such step."""
        return self.aec_env.agent_selection if self.agents else None

    @property
    def unwrapped(self) -> AECEnv[str, Observation, str]:
        """The environment at the core, as PettingZoo's own converters have it."""
        return self.aec_env.unwrapped

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the agent's observation space, always the same object."""
        space: spaces.Space[Any] = self.aec_env.observation_space(agent)
        return space

    def action_space(self, agent: str) -> spaces.Space[str]:
        """Return the agent's action space, always the same object."""
        space: spaces.Space[str] = self.aec_env.action_space(agent)
        return space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Start an episode; return every agent's observation and info.

        Raises:
            TaskError: `options` names a split or a task that does not exist.
        """
        self.aec_env.reset(seed=seed, options=options)
        return self._observations(), self._infos()

    def step(self, actions: Mapping[str, str]) -> Step:
        """Take the active agent's action; return every agent's part of what came of it.

        Returns:
            Observations, rewards, terminations, truncations and infos, each by agent.

        Raises:
            ActionError: the active agent's action is missing, or no text that UTF-8 can encode,
                or there was no `reset`. Nothing has changed then.
        """
        if not hasattr(self.aec_env, "agent_selection"):
            raise ActionError("step() before reset(): there is no episode yet; call reset()")
        agent = self.active_agent
        if agent is None:
            return {}, {}, {}, {}, {}
        self.aec_env.step(_action_of(agent, actions))
        result = (
            self._observations(),
            {name: float(reward) for name, reward in self.aec_env.rewards.items()},
            dict(self.aec_env.terminations),
            dict(self.aec_env.truncations),
            self._infos(),
        )
        self._play_dead_turns()
        return result

    def fork(self) -> TurnBasedParallelEnv:
        """Return a view of another environment in the same state."""
        return TurnBasedParallelEnv(copy.deepcopy(self.aec_env))

    def _is_done(self, agent: str) -> bool:
        return bool(self.aec_env.terminations[agent] or self.aec_env.truncations[agent])

    def _observations(self) -> dict[str, Observation]:
        return {agent: self.aec_env.observe(agent) for agent in self.aec_env.agents}

    def _infos(self) -> dict[str, dict[str, Any]]:
        active = self.active_agent
        return {
            agent: {**copy.deepcopy(info), "active_agent": active}
            for agent, info in self.aec_env.infos.items()
        }

    def _play_dead_turns(self) -> None:
        while self.aec_env.agents and self._is_done(self.aec_env.agent_selection):
            self.aec_env.step(None)


def _action_of(agent: str, actions: Mapping[str, str]) -> str:
    if not isinstance(actions, Mapping):
        raise ActionError(
            f"actions are {actions!r:.80}; give a table such as {{{agent!r}: 'text'}}"
        )
    if agent not in actions:
        given = ", ".join(map(repr, actions)) or "none"
        raise ActionError(
            f"the action of {agent!r}, whose turn it is, is missing; actions given: {given}; "
            f"add one under {agent!r}"
        )
    return actions[agent]
