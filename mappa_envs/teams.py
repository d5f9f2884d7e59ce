"""Teams that play without a model: texts given in advance, by a caller or by a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.play import Observation
from mappa_envs.team_files import TeamScript

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
    """A policy in which each agent says the texts of its role in order.

    They are those of a team of the scenario, or else of the roles' `script`. Their fields are
    filled in as they stand when the text is said. The last text repeats; a role without a text says
    that it has nothing to add. Which text comes next is read off the episode, so a restored or
    forked environment needs no care, and one team serves the environment through all its episodes.

    Args:
        env: The environment that is played, wrapped or not.
        team: What `load_team` returns; None for the roles' `script`.
    """

    def __init__(self, env: AECEnv[str, Any, Any], team: TeamScript | None = None) -> None:
        self._env = env.unwrapped
        roles = self._env.scenario.roles
        self._texts = team.texts if team else {name: role.script for name, role in roles.items()}

    def __call__(self, agent: str, observation: Observation) -> str:
        """Return the agent's text for its next action."""
        texts = self._texts[self._env.scenario.role_of(agent)]
        if not texts:
            return NOTHING_TO_SAY
        said = sum(turn.agent == agent for turn in self._env.turns)
        text: str = self._env.fill(texts[min(said, len(texts) - 1)])
        return text
