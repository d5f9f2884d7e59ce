"""One AEC environment that plays any scenario: roles act in order, tools run, work is handed on.

The rules of a turn:

- An action with tool calls runs them in order, in one workspace. While the role has turns left
  the same agent acts again and sees the output.
- An action without tool calls hands off to the next role; so does the last allowed turn.
- After the last role the task's own rule judges its last message, and every agent is paid that
  outcome once: the sparse baseline. The coach wrapper replaces it by per-action rewards.

What an agent does wrong is feedback in its next observation, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.episode import Episode
from mappa_envs.errors import ActionError
from mappa_envs.forking import Forkable, check_kind
from mappa_envs.outcomes.protocol import OutcomeScorer
from mappa_envs.records import agent_info, show
from mappa_envs.sandbox.protocol import FileRecord, Sandbox, Snapshot
from mappa_envs.scenario import Scenario
from mappa_envs.spaces import Utf8Text, is_text, observation_space
from mappa_envs.stage import Stage
from mappa_envs.tasks.source import (
    TaskSource,
    check_position,
    choose_task,
    task_texts,
    tasks_metadata,
)
from mappa_envs.types import EndReason, Message, Outcome, Split, Task, Turn
from mappa_envs.waiting import OneAction, Wait, finish, in_place, in_thread

_MADE_BY_RESET = frozenset(
    {
        "agent_selection",
        "end_reason",
        "episode",
        "infos",
        "outcome",
        "rewards",
        "task",
        "terminations",
        "truncations",
        "turns",
    }
)


@dataclass(frozen=True, slots=True)
class EnvSnapshot:
    """An episode at one moment, workspace and random stream included."""

    episode: Episode
    agents: tuple[str, ...]
    selected: str
    next_live: str | None
    """Whom PettingZoo selects after the dead turns."""
    rewards: Mapping[str, float]
    cumulative_rewards: Mapping[str, float]
    random_state: Mapping[str, Any]
    workspace: Snapshot | None


class PipelineEnv(Forkable, AECEnv[str, dict[str, tuple[Message, ...]], str]):  # type: ignore[misc]
    """A team that works on one task in turns.

    Observation: `{"messages": ({"role", "content"}, ...)}`, the agent's own conversation; empty
    before its first visit. Action: any text that UTF-8 can encode. `infos[agent]` names the role
    and the task; at an agent's dead turn it also holds `end_reason`, `outcome`, and `turns`, the
    agent's actions with their tool results as plain data.

    `(seed, options, actions)` determine everything observable. `reset(options=...)` knows
    `split` (`"train"` or `"test"`) and `task` (an id, or an index that counts through the split
    and wraps around); without `task` the seed draws one. Other options are ignored.

    A step that is interrupted or cancelled did not happen. `snapshot`, `restore` and `fork`
    branch an episode at any turn.

    For a fixed set of tasks `metadata` holds their ids by split (`task_ids`), and how many of them
    are dealt out together (`task_batch`). It also says how many actions each agent takes in an
    episode (`actions`), the fewest and the most.

    Before the first `reset()` reading an attribute of the episode is an `AttributeError`, and so is
    `last()`; `observe()` and `render()` are an `AssertionError`, as in `OrderEnforcingWrapper`.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        tasks: TaskSource,
        outcome: OutcomeScorer,
        sandbox: Callable[[], Sandbox],
        render_mode: str | None = None,
    ) -> None:
        super().__init__()
        self.scenario = scenario
        self.render_mode = render_mode
        self.metadata = {
            "name": f"{scenario.name}_v0",
            "render_modes": ["ansi", "human"],
            "is_parallelizable": False,
            "actions": {agent: _actions(scenario, agent) for agent in scenario.agents},
            **tasks_metadata(tasks),
        }
        self.possible_agents = list(scenario.agents)
        self.agents: list[str] = []
        self._tasks = tasks
        self._stage = Stage(sandbox, outcome)
        self._episode: Episode | None = None
        self._rng: np.random.Generator | None = None
        self._running = OneAction()
        self._action_spaces = {agent: Utf8Text() for agent in self.possible_agents}
        self._observation_spaces = {agent: observation_space() for agent in self.possible_agents}

    def __getattr__(self, name: str) -> Any:
        if name in _MADE_BY_RESET:
            raise AttributeError(f"{name} cannot be accessed before reset(); call reset() first")
        return super().__getattribute__(name)

    def action_space(self, agent: str) -> spaces.Space[str]:
        """Return the agent's action space, always the same object."""
        return self._action_spaces[agent]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the agent's observation space, always the same object."""
        return self._observation_spaces[agent]

    @property
    def episode(self) -> Episode:
        """The episode so far."""
        if self._episode is None:
            raise AttributeError("there is no episode")  # __getattr__ says why
        return self._episode

    @property
    def task(self) -> Task:
        """The task being played."""
        return self.episode.task

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The episode's actions so far, oldest first."""
        return self.episode.turns

    @property
    def outcome(self) -> Outcome | None:
        """The task's verdict; None until the last role has handed off."""
        return self.episode.outcome

    @property
    def end_reason(self) -> EndReason | None:
        """Why the episode ended; None while it runs."""
        return self.episode.end_reason

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The workspace's files and who wrote them, sorted by path; none after the end."""
        return self._stage.files

    def fill(self, template: str) -> str:
        """Return a template, e.g. `"{{ coder.output }}"`, with its fields as they stand now.

        Raises:
            ScenarioError: a field names a role that has not acted, or is no field at all.
        """
        return self.episode.fill(template, self.files, self.episode.role.files)

    def task_texts(self, split: Split, count: int) -> dict[str, str]:
        """Return the texts of a split's tasks by their ids; see `mappa_envs.tasks.source`.

        Args:
            split: `"train"` or `"test"`.
            count: How many are told of a split without an end, from its first on.

        Raises:
            TaskError: there is no such split.
        """
        check_position(split)
        return task_texts(self._tasks, split, count)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode.

        Raises:
            TaskError: `options` names a split or a task that does not exist.
            ActionError: an action is still running in an `astep`.
        """
        self._running.check_idle("reset()")
        rng = self._rng
        if seed is not None or rng is None:
            rng = np.random.default_rng(seed)
        task = choose_task(self._tasks, rng, {} if options is None else options)
        self._stage.begin(task)
        self._rng = rng
        seed = int(rng.integers(1 << 63))
        self._episode = Episode.begin(self.scenario, task, seed, self._stage.files)
        self.agents = list(self.possible_agents)
        self.agent_selection = self.episode.agent
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._skip_agent_selection: str | None = None
        self._tell()

    def observe(self, agent: str) -> dict[str, tuple[Message, ...]]:
        """Return a fresh copy of the agent's conversation; looking changes nothing."""
        self._check_reset("observe()")
        return {"messages": tuple(message.copy() for message in self.episode.messages[agent])}

    def step(self, action: str | None) -> None:
        """Take one action for `agent_selection`.

        Raises:
            ActionError: `action` is not UTF-8-encodable text, is not None at a dead turn, or the
                episode is over.
        """
        finish(self._step(action, in_place))

    async def astep(self, action: str | None) -> None:
        """Take one action as `step` does; programs run in other threads.

        When it is cancelled the program is ended, and the action did not happen.
        """
        await self._step(action, in_thread)

    def render(self) -> str | None:
        """Return the conversation so far (`"ansi"`), or print it (`"human"`)."""
        self._check_reset("render()")
        return show(self.episode, (), self.render_mode)

    def close(self) -> None:
        """Delete the workspace and end the scorer."""
        self._stage.close()

    def snapshot(self) -> EnvSnapshot:
        """Remember the episode as it is, workspace included.

        Raises:
            ActionError: there was no reset() yet, or an action is still running in an `astep`.
            SandboxError: the sandbox is dead.
        """
        self._running.check_idle("snapshot()")
        if self._rng is None or self._episode is None:
            raise ActionError("snapshot() before reset(): there is no episode; call reset() first")
        return EnvSnapshot(
            episode=self._episode,
            agents=tuple(self.agents),
            selected=self.agent_selection,
            next_live=self._skip_agent_selection,
            rewards=dict(self.rewards),
            cumulative_rewards=dict(self._cumulative_rewards),
            random_state=self._rng.bit_generator.state,
            workspace=self._stage.snapshot(),
        )

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Go back, or over, to a remembered episode; any number of times.

        Args:
            snapshot: Of this environment, or of another one of the same scenario.

        Raises:
            TypeError: it is no snapshot of a bare environment.
            ValueError: the snapshot is of another scenario, or of another kind of sandbox.
            ActionError: an action is still running in an `astep`.
            SandboxError: the sandbox is dead.
        """
        self._running.check_idle("restore()")
        check_kind(snapshot, EnvSnapshot)
        theirs = snapshot.episode.scenario
        if theirs != self.scenario:
            raise ValueError(
                f"the snapshot is of scenario {theirs.name!r}, with other settings or another "
                f"name than this one's, {self.scenario.name!r}; restore it in an environment made "
                "alike, or fork() the one it is of"
            )
        self._stage.restore(snapshot.workspace, snapshot.episode)
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = snapshot.random_state
        self._episode = snapshot.episode
        self.agents = list(snapshot.agents)
        self.agent_selection = snapshot.selected
        self._skip_agent_selection = snapshot.next_live
        self.rewards = dict(snapshot.rewards)
        self._cumulative_rewards = dict(snapshot.cumulative_rewards)
        self._tell()

    def fork(self) -> PipelineEnv:
        """Return another environment in the same state; from here on each goes its own way.

        They share the source of tasks and the outcome rule; each has a workspace of its own.
        """
        other = PipelineEnv(
            self.scenario,
            tasks=self._tasks,
            outcome=self._stage.scorer,
            sandbox=self._stage.make_sandbox,
            render_mode=self.render_mode,
        )
        if self._episode is not None:
            other.restore(self.snapshot())
        return other

    def _check_reset(self, call: str) -> None:
        if self._episode is None:
            raise AssertionError(f"reset() needs to be called before {call}")

    async def _step(self, action: str | None, wait: Wait) -> None:
        """Do all that waits first and then change everything at once."""
        agent = self._agent_to_act(action)
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(None)
            return
        assert action is not None
        with self._running.of(agent):
            episode = await self._stage.act(self.episode, action, wait)
        self._cumulative_rewards[agent] = 0.0
        self._go_on(episode)

    def _agent_to_act(self, action: object) -> str:
        """Return the selected agent.

        Raises:
            ActionError: nobody acts now, or `action` is none that it may take.
        """
        if self._episode is None:
            raise ActionError("step() before reset(): there is no episode; call reset() first")
        if not self.agents:
            raise ActionError("step() after the last dead turn: the episode is over; call reset()")
        self._running.check_idle("step()")
        agent: str = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if action is not None:
                raise ActionError(f"{agent} has finished: its action is {action!r:.80}; pass None")
        elif not is_text(action):
            raise ActionError(
                f"action of {agent} is {action!r:.80}: it must be a str that UTF-8 can encode"
            )
        return agent

    def _go_on(self, episode: Episode) -> None:
        """Make an episode that an action led to the present one, and pay for its end."""
        self._episode = episode
        self._clear_rewards()
        self.agent_selection = episode.agent
        if episode.end_reason is None:
            return
        if episode.outcome is not None:
            self.rewards = dict.fromkeys(self.agents, episode.outcome.score)
        self._accumulate_rewards()
        self._tell()
        self._stage.clear()
        self._deads_step_first()

    def _tell(self) -> None:
        """Set flags and infos to what the episode says."""
        reason = self.end_reason
        self.terminations = dict.fromkeys(self.agents, reason == "completed")
        self.truncations = dict.fromkeys(self.agents, reason not in (None, "completed"))
        self.infos = {agent: agent_info(self.episode, agent) for agent in self.agents}


def _actions(scenario: Scenario, agent: str) -> list[int]:
    """Return the fewest and the most actions of an agent in an episode."""
    role = scenario.role_of(agent)
    visits = scenario.visits.count(role)
    return [visits, visits * scenario.roles[role].max_turns]
