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

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.actions import parse_action
from mappa_envs.errors import ActionError, SandboxError, TaskError
from mappa_envs.feedback import NO_PROGRAM, SANDBOX_DIED, feedback, joined_output
from mappa_envs.outcomes.protocol import OutcomeScorer
from mappa_envs.prompts import render_template, template_fields
from mappa_envs.records import render_transcript, turn_record
from mappa_envs.sandbox.protocol import Actor, Sandbox, program_seed
from mappa_envs.scenario import Role, Scenario
from mappa_envs.spaces import Utf8Text, is_text, observation_space
from mappa_envs.tasks.source import TaskSource, is_index
from mappa_envs.tools import TOOLS
from mappa_envs.types import EndReason, Message, Outcome, Split, Task, ToolCall, ToolResult, Turn

logger = logging.getLogger(__name__)

_MADE_BY_RESET = frozenset(
    {
        "agent_selection",
        "end_reason",
        "infos",
        "outcome",
        "rewards",
        "task",
        "terminations",
        "truncations",
        "turns",
    }
)


class PipelineEnv(AECEnv[str, dict[str, tuple[Message, ...]], str]):  # type: ignore[misc]
    """A team that works on one task in turns.

    Observation: `{"messages": ({"role", "content"}, ...)}`, the agent's own conversation; empty
    before its first turn. Action: any text that UTF-8 can encode. `infos[agent]` names the role
    and the task; at an agent's dead turn it also holds `end_reason`, `outcome`, and `turns`, the
    agent's actions with their tool results as plain data.

    `(seed, options, actions)` determine everything observable. `reset(options=...)` knows
    `split` (`"train"` or `"test"`) and `task` (an id, or an index that counts through the split
    and wraps around); without `task` the seed draws one. Other options are ignored.

    Before the first `reset()` there is no episode to look at: reading one of its attributes is an
    `AttributeError`, and so is `last()`; `observe()` and `render()` are an `AssertionError`, as in
    PettingZoo's `OrderEnforcingWrapper`.
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
        }
        self.possible_agents = list(scenario.agents)
        self.agents: list[str] = []
        self._roles = dict(zip(scenario.agents, scenario.roles.items(), strict=True))
        self._tasks = tasks
        self._outcome_scorer = outcome
        self._make_sandbox = sandbox
        self._sandbox: Sandbox | None = None
        self._rng: np.random.Generator | None = None
        self._messages: dict[str, list[Message]] = {}
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
    def task(self) -> Task:
        """The task being played."""
        return self._task

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The episode's actions so far, oldest first."""
        return tuple(self._turns)

    @property
    def outcome(self) -> Outcome | None:
        """The task's verdict; None until the last role has handed off."""
        return self._outcome

    @property
    def end_reason(self) -> EndReason | None:
        """Why the episode ended; None while it runs."""
        return self._end_reason

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode.

        Raises:
            TaskError: `options` names a split or a task that does not exist.
        """
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        self._task = self._choose_task(self._rng, options or {})
        self._episode_seed = int(self._rng.integers(1 << 63))
        self._close_sandbox()
        self._turns: list[Turn] = []
        self._outcome: Outcome | None = None
        self._end_reason: EndReason | None = None
        self._messages = {agent: [] for agent in self.possible_agents}
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self._info(agent) for agent in self.agents}
        self._skip_agent_selection = None
        self._hand_to(self.agents[0])

    def observe(self, agent: str) -> dict[str, tuple[Message, ...]]:
        """Return a fresh copy of the agent's conversation; looking changes nothing."""
        self._check_reset("observe()")
        return {"messages": tuple(message.copy() for message in self._messages[agent])}

    def step(self, action: str | None) -> None:
        """Take one action for `agent_selection`.

        Raises:
            ActionError: `action` is not UTF-8-encodable text, or the episode is over.
            ValueError: an action other than None for an agent at its dead turn.
        """
        if not self.agents:
            raise ActionError("step() after the last dead turn: the episode is over; call reset()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not is_text(action):
            raise ActionError(
                f"action of {agent} is {action!r:.80}: it must be a str that UTF-8 can encode"
            )
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._take_turn(agent, action)
        self._accumulate_rewards()

    def render(self) -> str | None:
        """Return the conversation so far (`"ansi"`), or print it (`"human"`)."""
        self._check_reset("render()")
        transcript = render_transcript(self.task, self.turns, self.outcome)
        if self.render_mode == "human":
            from rich import print as rich_print
            from rich.text import Text

            rich_print(Text(transcript))
            return None
        return transcript

    def close(self) -> None:
        """Delete the workspace and end the scorer."""
        self._close_sandbox()
        self._outcome_scorer.close()

    def _check_reset(self, call: str) -> None:
        if not self._messages:
            raise AssertionError(f"reset() needs to be called before {call}")

    def _choose_task(self, rng: np.random.Generator, options: Mapping[str, Any]) -> Task:
        split: Split = options.get("split", "train")
        if split not in ("train", "test"):
            raise TaskError(f"options: split is {split!r}; it must be 'train' or 'test'")
        wanted = options.get("task")
        if isinstance(wanted, str):
            return self._tasks.find(wanted)
        if wanted is None:
            wanted = rng.integers(self._tasks.size(split) or 1 << 31)
        if not is_index(wanted):
            raise TaskError(f"options: task is {wanted!r}; it must be an id or an index from 0")
        return self._tasks.get(split, int(wanted))

    def _take_turn(self, agent: str, action: str) -> None:
        role_name, role = self._roles[agent]
        parsed = parse_action(action)
        index = sum(turn.agent == agent for turn in self._turns)
        results, sandbox_died = self._run_calls(agent, parsed.calls, role)
        hands_off = not results or index + 1 >= role.max_turns
        turn = Turn(
            step=len(self._turns),
            agent=agent,
            role=role_name,
            index=index,
            messages=self.observe(agent)["messages"],
            action=action,
            visible=parsed.visible,
            tool_results=results,
            feedback=SANDBOX_DIED if sandbox_died else feedback(results, hands_off),
            handed_off=hands_off,
        )
        self._record(turn)
        if sandbox_died:
            self._end("sandbox_dead")
        elif hands_off:
            self._hand_on(agent)

    def _run_calls(
        self, agent: str, calls: tuple[ToolCall, ...], role: Role
    ) -> tuple[tuple[ToolResult, ...], bool]:
        """Return the results in order, and whether the sandbox died on the way."""
        results: list[ToolResult] = []
        for number, call in enumerate(calls if role.tools else ()):
            step = len(self._turns)
            seed = program_seed(self._episode_seed, agent, step, number)
            try:
                results.append(self._run_call(call, role, Actor(agent, step, seed, role.files)))
            except SandboxError as error:
                logger.error("task %s: the sandbox died: %s", self._task.id, error)
                return tuple(results), True
        return tuple(results), False

    def _run_call(self, call: ToolCall, role: Role, actor: Actor) -> ToolResult:
        if call.error is not None:
            return ToolResult(call, output=f"[not run: {call.error}]")
        if call.tool not in role.tools:
            known = ", ".join(role.tools)
            return ToolResult(
                call, output=f"[not run: no tool {call.tool!r:.60}; there is: {known}]"
            )
        if self._sandbox is None:
            self._sandbox = self._make_sandbox()
        return TOOLS[call.tool](call, self._sandbox, self.scenario.limits, actor)

    def _record(self, turn: Turn) -> None:
        self._turns.append(turn)
        conversation = self._messages[turn.agent]
        conversation.append(Message(role="assistant", content=turn.action))
        if turn.feedback is not None:
            conversation.append(Message(role="user", content=turn.feedback))

    def _hand_on(self, agent: str) -> None:
        position = self.possible_agents.index(agent) + 1
        if position < len(self.possible_agents):
            self._hand_to(self.possible_agents[position])
            return
        self._outcome = self._outcome_scorer.score(self._task, self._turns[-1].visible)
        self.rewards = dict.fromkeys(self.agents, self._outcome.score)
        self._end("completed")

    def _hand_to(self, agent: str) -> None:
        """Open the agent's conversation with what its role may see, and let it act."""
        _, role = self._roles[agent]
        values = {field: self._field(field) for field in template_fields(role.prompt)}
        if role.system:
            self._messages[agent].append(Message(role="system", content=role.system))
        prompt = render_template(role.prompt, values)
        self._messages[agent].append(Message(role="user", content=prompt))
        self.agent_selection = agent

    def _field(self, field: str) -> str:
        if field == "problem":
            return self._task.prompt
        role, kind = field.split(".")
        turns = [turn for turn in self._turns if turn.role == role]
        if kind == "message":
            return turns[-1].visible if self.scenario.strip_thinking else turns[-1].action
        outputs = [turn for turn in turns if turn.tool_results]
        return joined_output(outputs[-1].tool_results) if outputs else NO_PROGRAM

    def _end(self, reason: EndReason) -> None:
        self._end_reason = reason
        completed = reason == "completed"
        self.terminations = dict.fromkeys(self.agents, completed)
        self.truncations = dict.fromkeys(self.agents, not completed)
        self.infos = {agent: self._info(agent) for agent in self.agents}
        self._close_sandbox()
        self._deads_step_first()

    def _info(self, agent: str) -> dict[str, Any]:
        task = {**self._task.metadata, "id": self._task.id, "split": self._task.split}
        info: dict[str, Any] = {"role": self._roles[agent][0], "task": task}
        if self._end_reason is not None:
            info["end_reason"] = self._end_reason
            info["turns"] = [turn_record(turn) for turn in self._turns if turn.agent == agent]
            info["outcome"] = self._outcome_record()
        return info

    def _outcome_record(self) -> dict[str, Any] | None:
        if self._outcome is None:
            return None
        return {
            "score": self._outcome.score,
            "verdict": self._outcome.verdict,
            "reason": self._outcome.reason,
            "answer": self._outcome.answer,
            "accepted": list(self._task.answers),
        }

    def _close_sandbox(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
