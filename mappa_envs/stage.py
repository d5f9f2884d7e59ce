"""Where an action happens: it is read, its tools run in the workspace, and its episode goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mappa_envs.actions import parse_action
from mappa_envs.episode import Episode
from mappa_envs.errors import SandboxError
from mappa_envs.feedback import SANDBOX_DIED, feedback
from mappa_envs.outcomes.protocol import OutcomeScorer
from mappa_envs.probes import PROBES, Probe
from mappa_envs.sandbox.lazy import LazySandbox
from mappa_envs.sandbox.protocol import (
    Actor,
    FileChanges,
    FileRecord,
    Sandbox,
    Snapshot,
    program_seed,
)
from mappa_envs.scenario import Role
from mappa_envs.tools import TOOLS
from mappa_envs.types import Task, ToolCall, ToolResult, Turn
from mappa_envs.waiting import Wait

logger = logging.getLogger(__name__)
_Results = tuple[tuple[ToolResult, ...], bool]


class Stage:
    """A workspace and a rule for the outcome, for one episode after another."""

    def __init__(self, make_sandbox: Callable[[], Sandbox], scorer: OutcomeScorer) -> None:
        self.make_sandbox = make_sandbox
        self.scorer = scorer
        self._sandbox = LazySandbox(make_sandbox)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The workspace's files, sorted by path."""
        return self._sandbox.files

    def snapshot(self) -> Snapshot | None:
        """Remember the workspace; None is one that is as the task made it."""
        return self._sandbox.snapshot()

    def restore(self, snapshot: Snapshot | None, episode: Episode) -> None:
        """Bring the workspace to what was remembered when an episode had come so far."""
        ended = episode.end_reason is not None
        self._sandbox.restore(snapshot, {} if ended else episode.task.files)

    def begin(self, task: Task) -> None:
        """End what runs, and lay a task's files into a new workspace."""
        self._sandbox.begin(task.files)

    def clear(self) -> None:
        """End what runs, and empty the workspace."""
        self._sandbox.begin({})

    def close(self) -> None:
        """Empty the workspace and end the scorer; either comes back when it is needed."""
        self.clear()
        self.scorer.close()

    async def act(self, episode: Episode, action: str, wait: Wait) -> Episode:
        """Return the episode after an action of the agent that is to act.

        If this ends by an exception the action did not happen, in the workspace either.

        Args:
            episode: One that has not ended.
            action: Any text that UTF-8 can encode.
            wait: Makes the calls that may take long.
        """
        with self._sandbox.action() as sandbox:
            turn, sandbox_died = await self._turn(episode, action, sandbox, wait)
            after = episode.went_on(turn)
            if sandbox_died:
                return after.ended("sandbox_dead")
            if not turn.handed_off:
                return after
            if not episode.is_last_visit:
                return after.handed_on(turn.files)
            outcome = await wait(self.scorer.score, episode.task, turn.visible, self._sandbox)
            return after.ended("completed", outcome)

    async def _turn(
        self, episode: Episode, action: str, sandbox: Callable[[], Sandbox], wait: Wait
    ) -> tuple[Turn, bool]:
        """Return what came of an action, and whether the sandbox died of it."""
        parsed = parse_action(action)
        results, sandbox_died = await self._run_all(episode, parsed.calls, sandbox, wait)
        files = () if sandbox_died else self.files
        missing = _missing(episode.role, files)
        facts = await self._facts(episode, results, sandbox, wait) if not sandbox_died else {}
        is_last = episode.taken + 1 >= episode.role.max_turns
        stays = bool(results) or bool(missing and episode.scenario.wait_for_artifacts)
        hands_off = is_last or not stays
        turn = Turn(
            step=len(episode.turns),
            agent=episode.agent,
            role=episode.role_name,
            index=len(episode.own(episode.agent)),
            messages=episode.messages[episode.agent],
            action=action,
            visible=parsed.visible,
            tool_results=results,
            feedback=SANDBOX_DIED
            if sandbox_died
            else feedback(results, hands_off, missing, self._sandbox.folders if missing else ()),
            handed_off=hands_off,
            files=files,
            missing=missing,
            facts=facts,
        )
        return turn, sandbox_died

    async def _facts(
        self,
        episode: Episode,
        results: tuple[ToolResult, ...],
        sandbox: Callable[[], Sandbox],
        wait: Wait,
    ) -> Mapping[str, Any]:
        """Return what the scenario's probe finds; what it found before where nothing changed."""
        probe = episode.scenario.probe
        if probe is None:
            return {}
        if not any(result.files != FileChanges() for result in results):
            return episode.turns[-1].facts if episode.turns else {}
        return await wait(_probe, PROBES[probe], sandbox, episode)

    async def _run_all(
        self,
        episode: Episode,
        calls: tuple[ToolCall, ...],
        sandbox: Callable[[], Sandbox],
        wait: Wait,
    ) -> _Results:
        """Return the results in order, and whether the sandbox died on the way."""
        role, step = episode.role, len(episode.turns)
        results: list[ToolResult] = []
        for number, call in enumerate(calls if role.tools else ()):
            refused = _refusal(call, role)
            if refused is not None:
                results.append(refused)
                continue
            seed = program_seed(episode.seed, episode.agent, step, number)
            actor = Actor(episode.agent, step, seed, role.files)
            try:
                results.append(await wait(_run, call, sandbox, episode, actor))
            except SandboxError as error:
                logger.error("task %s: the sandbox died: %s", episode.task.id, error)
                return tuple(results), True
        return tuple(results), False


def _run(
    call: ToolCall, sandbox: Callable[[], Sandbox], episode: Episode, actor: Actor
) -> ToolResult:
    return TOOLS[call.tool](call, sandbox(), episode.scenario.limits, actor)


def _probe(probe: Probe, sandbox: Callable[[], Sandbox], episode: Episode) -> Mapping[str, Any]:
    return probe(sandbox(), episode.scenario.limits, episode.task)


def _refusal(call: ToolCall, role: Role) -> ToolResult | None:
    """Return why a call is not run; None for one that is."""
    if call.error is not None:
        return ToolResult(call, output=f"[not run: {call.error}]")
    if call.tool not in role.tools:
        known = ", ".join(role.tools)
        return ToolResult(call, output=f"[not run: no tool {call.tool!r:.60}; there is: {known}]")
    return None


def _missing(role: Role, files: tuple[FileRecord, ...]) -> tuple[str, ...]:
    """Return the artifacts of a role that are not among the files."""
    there = {file.path for file in files}
    return tuple(name for name in role.artifacts if name not in there)
