"""Teams that play without a model: texts given in advance, and a scenario's own script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.play import Observation

NOTHING_TO_SAY = "I have nothing to add."
"""What a role without a script says."""


class ScriptedTeam:
    """A policy in which each agent says its own texts in order, whatever it sees.

    >>> team = ScriptedTeam({"solver_0": ["2 + 3 = 5"], "coder_0": ["Nothing to run."]})
    >>> team("solver_0", {"messages": ()})
    '2 + 3 = 5'
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._texts = {agent: list(own) for agent, own in texts.items()}

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the agent's next text.

        Raises:
            LookupError: the script has no text left for the agent.
        """
        if not self._texts.get(agent):
            raise LookupError(f"the script has no text left for {agent!r}; add one")
        return self._texts[agent].pop(0)


class ScenarioTeam:
    """A policy in which each agent says what its role's `script` holds, in order.

    The fields of a script's texts are filled in as they stand when the text is said. The last text
    repeats; a role without a script says that it has nothing to add. Which text comes next is read
    off the episode, so a restored or forked environment needs no care, and one team serves the
    environment through all its episodes.

    Args:
        env: The environment that is played, wrapped or not.
    """

    def __init__(self, env: AECEnv[str, Any, Any]) -> None:
        self._env = env.unwrapped

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the agent's text for its next action."""
        scenario = self._env.scenario
        role = dict(zip(scenario.agents, scenario.roles.values(), strict=True))[agent]
        if not role.script:
            return NOTHING_TO_SAY
        said = sum(turn.agent == agent for turn in self._env.turns)
        text: str = self._env.fill(role.script[min(said, len(role.script) - 1)])
        return text
