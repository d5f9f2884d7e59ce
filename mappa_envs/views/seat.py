"""Gymnasium's interface to one seat of a team, whose other seats are teammates."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.errors import ActionError, SandboxError, ScenarioError, did_you_mean
from mappa_envs.play import Observation, Policy
from mappa_envs.teams import ScenarioTeam
from mappa_envs.views.view import View


class SeatEnv(View, gymnasium.Env[Observation, str]):
    """One agent's seat: `step(text)` is its action, and teammates play until its next turn.

    The reward of a step is all that the action earned by then, which is what PettingZoo's
    `last()` pays the agent at its next turn or at the end. An episode that ends by itself is
    terminated, one that a limit ends is truncated, never both. The last `info` holds `end_reason`,
    `outcome` where there is one, `turns`, and with a coach `ledger`.

    Equal seeds, options and actions give equal episodes if the teammates are deterministic; the
    seed is that of the team's environment, so the same seed draws the same task there. Vector
    environments work; text has no place in shared memory, so asynchronous ones need
    `vector_kwargs={"shared_memory": False}`. Those of Gymnasium 1.0 to 1.4 skip a worker's action
    when `reset` was called after its episode ended; leave the resets to them, or turn their
    autoreset off.

    Args:
        aec_env: The team's environment, wrapped or not; it is closed with this one.
        seat: The agent to play, e.g. `"verifier_0"`.
        teammates: Who plays the other seats: `policy(agent, observation)` for all of them, or a
            table of such policies by agent. Who is not in the table says the scenario's script,
            and without `teammates` everybody does.

    Raises:
        ScenarioError: there is no such seat, or no such teammate.
    """

    def __init__(
        self,
        aec_env: AECEnv[str, Observation, str],
        seat: str,
        teammates: Policy | Mapping[str, Policy] | None = None,
    ) -> None:
        _check_seat(seat, aec_env.possible_agents)
        self.aec_env = aec_env
        self.seat = seat
        self.metadata = {**copy.deepcopy(aec_env.metadata), "render_fps": 1}
        self.render_mode = aec_env.render_mode
        self.observation_space = aec_env.observation_space(seat)
        self.action_space = aec_env.action_space(seat)
        self._teammates = _policies(teammates, seat, aec_env.possible_agents)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and play it up to the seat's first turn.

        Raises:
            TaskError: `options` names a split or a task that does not exist.
            SandboxError: the sandbox died before the seat's first turn, so there is no episode.
        """
        super().reset(seed=seed)
        self.aec_env.reset(seed=seed, options=options)
        self._play_teammates()
        observation, _, terminated, truncated, info = self.aec_env.last()
        if terminated or truncated:
            raise SandboxError(
                f"the episode of task {info['task']['id']!r} ended ({info['end_reason']}) before "
                f"{self.seat!r} had a turn; call reset() for another one"
            )
        return observation, _seat_info(info)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action of the seat and play on to its next turn, or to the end.

        Returns:
            Observation, reward, terminated, truncated, info.

        Raises:
            ActionError: `action` is not UTF-8-encodable text, and nothing has changed; or it is
                not the seat's turn, because the episode is over, or was never begun, or an error
                of a teammate broke it off.
        """
        if not self._is_seats_turn():
            raise ActionError(f"step() while {self.seat!r} has no turn; call reset() first")
        self.aec_env.step(action)
        self._play_teammates()
        observation, reward, terminated, truncated, info = self.aec_env.last()
        return observation, float(reward), terminated, truncated, _seat_info(info)

    def fork(self) -> SeatEnv:
        """Return another environment in the same state, with the same teammates."""
        other = SeatEnv(copy.deepcopy(self.aec_env), self.seat, self._teammates)
        other.spec = self.spec
        other._np_random = copy.deepcopy(self._np_random)
        other._np_random_seed = self._np_random_seed
        return other

    def _is_seats_turn(self) -> bool:
        env = self.aec_env
        if not getattr(env, "agents", ()) or env.agent_selection != self.seat:
            return False
        return not (env.terminations[self.seat] or env.truncations[self.seat])

    def _play_teammates(self) -> None:
        """Play on until the seat has a turn, be it the one after the end."""
        while (agent := self.aec_env.agent_selection) != self.seat:
            observation, _, terminated, truncated, _ = self.aec_env.last()
            policy = self._teammates.get(agent, ScenarioTeam(self.aec_env))
            self.aec_env.step(None if terminated or truncated else policy(agent, observation))


def _check_seat(seat: str, agents: list[str]) -> None:
    if seat not in agents:
        hint = did_you_mean(seat, agents, "seats")
        raise ScenarioError(f"seat is {seat!r:.80}; {hint}")


def _policies(
    teammates: Policy | Mapping[str, Policy] | None, seat: str, agents: list[str]
) -> dict[str, Policy]:
    """Return who plays the seats that are not left to the scenario's script."""
    others = [agent for agent in agents if agent != seat]
    if teammates is None:
        return {}
    team = teammates if isinstance(teammates, Mapping) else dict.fromkeys(others, teammates)
    for agent, policy in team.items():
        if agent == seat:
            raise ScenarioError(f"teammates: {seat!r} is the seat that you play; leave it out")
        if agent not in others:
            hint = did_you_mean(agent, others, "teammates")
            raise ScenarioError(f"teammates: there is no teammate {agent!r:.80}; {hint}")
        if not callable(policy):
            raise ScenarioError(
                f"teammates: {agent!r} is played by {policy!r:.80}; give a function "
                "policy(agent, observation) that returns a text"
            )
    return dict(team)


def _seat_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without empty entries: vector environments cannot mix them with tables."""
    return {key: copy.deepcopy(value) for key, value in info.items() if value is not None}
