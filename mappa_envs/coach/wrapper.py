"""Pays each action by a coach's judgement instead of paying the outcome once at the end."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]
from pettingzoo.utils.wrappers import BaseWrapper  # type: ignore[import-untyped]

from mappa_envs.coach.contexts import context_of
from mappa_envs.coach.entries import entry_of_turn, with_env_reward, with_hindsight
from mappa_envs.coach.judging import (
    Answer,
    Question,
    answer,
    begin,
    is_awaitable,
    judge,
    withdraw,
)
from mappa_envs.coach.ledger import Payment, credit_outcome, entry_record
from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.coach.rehearsal import rehearsed
from mappa_envs.env import EnvSnapshot
from mappa_envs.errors import ActionError, CoachError
from mappa_envs.forking import Forkable, check_kind
from mappa_envs.records import show
from mappa_envs.types import LedgerEntry, Message, Turn
from mappa_envs.waiting import OneAction, Wait, finish, in_place, in_thread

Observation = dict[str, tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class CoachSnapshot:
    """A coached episode at one moment."""

    env: EnvSnapshot
    payment: Payment
    deferred: bool
    hindsight: bool
    entries: tuple[LedgerEntry, ...]
    pending: Mapping[int, Question]
    """What the coach has not answered yet, by the step of the action."""
    rewards: Mapping[str, float]
    cumulative_rewards: Mapping[str, float]


class CoachWrapper(Forkable, BaseWrapper[str, Observation, str]):  # type: ignore[misc]
    """Scores every action and keeps the ledger.

    Wraps a `PipelineEnv`, with or without other PettingZoo wrappers between. The wrapper owns its
    own `rewards` and cumulative rewards and never writes into the wrapped environment.

    A turn the coach could not judge is `unscored` and pays nothing, the outcome included:
    PettingZoo needs a float, so a plain loop reads 0.0, and the ledger says that this is no score.
    At an agent's dead turn `infos[agent]["ledger"]` holds the agent's entries as plain data.

    With `deferred`, a step does not wait for the coach. Its entry is `pending` until the step
    that ends the episode, which waits for all answers; every process reward is then paid at the
    dead turns. The ledgers of both ways are equal but for latency and cost.

    With `hindsight`, the step that ends the episode asks the coach about every action once more,
    with the outcome and what came later in view. Both scores stay in the ledger, and
    `payment.pays` says which one pays; where that is the second, entries are `pending` until then.

    Raises:
        ValueError: `payment` pays in hindsight, and nobody is to look back.
    """

    def __init__(
        self,
        env: AECEnv[str, Observation, str],
        coach: Coach,
        payment: Payment | None = None,
        *,
        deferred: bool = False,
        hindsight: bool = False,
    ) -> None:
        super().__init__(env)
        self.coach = coach
        self.payment = payment or Payment()
        self.deferred = deferred
        self.hindsight = hindsight
        if self.payment.pays == "hindsight" and not hindsight:
            raise ValueError("pays is 'hindsight', and hindsight is False; set it to True as well")
        self._entries: list[LedgerEntry] = []
        self._pending: dict[int, Question] = {}
        self._answers: dict[int, Answer] = {}
        self._running = OneAction()

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """One entry per action of the episode so far, oldest first."""
        return tuple(self._entries)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode with an empty ledger.

        Raises:
            TaskError: `options` names a split or a task that does not exist.
            ActionError: an action is still running in an `astep`.
        """
        self._running.check_idle("reset()")
        super().reset(seed=seed, options=options)
        self._forget_answers()
        self._entries = []
        self._pending = {}
        self.rewards = dict.fromkeys(self.env.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.env.agents, 0.0)
        self._tell()

    def step(self, action: str | None) -> None:
        """Take one action and pay for it."""
        finish(self._step(action, in_place))

    async def astep(self, action: str | None) -> None:
        """Take one action without holding up the event loop, neither for tools nor the coach.

        A coach with `aassess` is awaited; one without is asked in another thread. When it is
        cancelled, the action did not happen.
        """
        await self._step(action, in_thread)

    def render(self) -> str | None:
        """Return the conversation with its scores (`"ansi"`), or print it (`"human"`)."""
        if not hasattr(self, "rewards"):
            rendered: str | None = super().render()  # says that there is no episode yet
            return rendered
        return show(self.env.unwrapped.episode, self._entries, self.render_mode)

    def close(self) -> None:
        """Close the environment, and want no more answers of the coach.

        A thread in which a coach is asked already goes on to its answer, also at the end of the
        process: give calls of a server a deadline.
        """
        self._forget_answers()
        super().close()

    def coach_plan(self) -> dict[str, Any] | None:
        """Return what judging one episode takes, as plain data; None where no model is asked.

        A scripted episode is played in a copy to find out how long texts are; nobody is asked.
        """
        plan = getattr(self.coach, "plan", None)
        if plan is None:
            return None
        return {**plan(rehearsed(self.env)), "hindsight": self.hindsight}

    def snapshot(self) -> CoachSnapshot:
        """Remember the episode as it is: workspace, ledger, and what is pending.

        Raises:
            ActionError: there was no reset() yet, or an action is still running in an `astep`.
        """
        self._running.check_idle("snapshot()")
        return CoachSnapshot(
            self.env.snapshot(),
            self.payment,
            self.deferred,
            self.hindsight,
            tuple(self._entries),
            dict(self._pending),
            dict(self.rewards),
            dict(self._cumulative_rewards),
        )

    def restore(self, snapshot: CoachSnapshot) -> None:
        """Go back, or over, to a remembered episode; what was pending is asked again.

        Raises:
            TypeError: it is no snapshot of a coached environment.
            ValueError: the snapshot is of another scenario, another way to pay, or of another
                kind of sandbox.
            ActionError: an action is still running in an `astep`.
        """
        self._running.check_idle("restore()")
        check_kind(snapshot, CoachSnapshot)
        theirs = (snapshot.payment, snapshot.deferred, snapshot.hindsight)
        ours = (self.payment, self.deferred, self.hindsight)
        if theirs != ours:
            raise ValueError(
                f"the snapshot is of (payment, deferred, hindsight) = {theirs}, and this "
                f"environment has {ours}; restore it in one that is made alike"
            )
        self.env.restore(snapshot.env)
        self._forget_answers()
        self._entries = list(snapshot.entries)
        self._pending = dict(snapshot.pending)
        self.rewards = dict(snapshot.rewards)
        self._cumulative_rewards = dict(snapshot.cumulative_rewards)
        self._tell()

    def fork(self) -> CoachWrapper:
        """Return another environment in the same state, with the same coach."""
        env = copy.deepcopy(self.env)
        other = CoachWrapper(
            env, self.coach, self.payment, deferred=self.deferred, hindsight=self.hindsight
        )
        if hasattr(self, "rewards"):
            other.restore(self.snapshot())
        return other

    async def _step(self, action: str | None, wait: Wait) -> None:
        if not hasattr(self, "rewards"):
            raise ActionError("step() before reset(): there is no episode; call reset() first")
        if not self.env.agents or self._is_dead(self.env.agent_selection):
            self._dead_step(action)
            return
        self._running.check_idle("step()")
        agent = self.env.agent_selection
        with self._running.of(agent):
            await self._act(agent, action, wait)

    async def _act(self, agent: str, action: str | None, wait: Wait) -> None:
        before = self.env.snapshot()
        if wait is in_place:
            self.env.step(action)
        else:
            await self.env.astep(action)
        try:
            entries, pending = await self._judged(self.env.turns, wait)
        except BaseException:  # what was not judged to the end did not happen
            self._forget_answers()
            self.env.restore(before)
            raise
        self._pay(agent, entries, pending)

    def _dead_step(self, action: str | None) -> None:
        agents = list(self.env.agents)
        self.env.step(action)
        for agent in set(agents) - set(self.env.agents):
            del self._cumulative_rewards[agent], self.infos[agent]
        self.rewards = dict.fromkeys(self.env.agents, 0.0)

    async def _judged(
        self, turns: tuple[Turn, ...], wait: Wait
    ) -> tuple[list[LedgerEntry], dict[int, Question]]:
        """Return the ledger with an entry for the last turn, and what is pending after it."""
        entries, pending = await self._judged_first(turns, wait)
        if self.hindsight and self.env.end_reason is not None:
            entries = await self._judged_in_hindsight(entries, turns, wait)
        return entries, pending

    async def _judged_first(
        self, turns: tuple[Turn, ...], wait: Wait
    ) -> tuple[list[LedgerEntry], dict[int, Question]]:
        question = self._question(turns)
        if not self.deferred:
            judgement = await judge(self.coach, question, wait)
            entry = entry_of_turn(question, judgement, self.payment, self.coach.id)
            return [*self._entries, entry], {}
        pending = {**self._pending, turns[-1].step: question}
        for step, asked in pending.items():
            if step in self._answers and not is_awaitable(self._answers[step], wait):
                withdraw(self._answers.pop(step))
            if step not in self._answers:
                self._answers[step] = begin(self.coach, asked, wait)
        if self.env.end_reason is None:
            entry = entry_of_turn(question, None, self.payment, self.coach.id)
            return [*self._entries, entry], pending
        return [
            entry_of_turn(
                asked, await answer(self._answers[step], wait), self.payment, self.coach.id
            )
            for step, asked in pending.items()
        ], {}

    async def _judged_in_hindsight(
        self, entries: list[LedgerEntry], turns: tuple[Turn, ...], wait: Wait
    ) -> list[LedgerEntry]:
        """Return the entries with what the coach says of each action now that it knows the end."""
        asked = [self._question_in_hindsight(turns, step) for step in range(len(turns))]
        begun = [begin(self.coach, question, wait) for question in asked]
        try:
            said = [await answer(each, wait) for each in begun]
        finally:
            for each in begun:
                withdraw(each)
        return [
            with_hindsight(entry, each, self.payment)
            for entry, each in zip(entries, said, strict=True)
        ]

    def _question(self, turns: tuple[Turn, ...]) -> Question:
        refusal = None
        if self.env.end_reason == "sandbox_dead":
            refusal = _not_judged("not judged: the sandbox died during the action")
        return Question(turns[-1], self._context(turns, len(turns) - 1), refusal)

    def _question_in_hindsight(self, turns: tuple[Turn, ...], step: int) -> Question:
        outcome, refusal = self.env.outcome, None
        if outcome is None:
            refusal = _not_judged("not judged in hindsight: the sandbox died before the outcome")
        context = self._context(turns, step)
        context = replace(context, later=turns[step + 1 :], outcome=outcome)
        return Question(turns[step], context, refusal)

    def _context(self, turns: tuple[Turn, ...], step: int) -> CoachContext:
        return context_of(self.coach, self.env.task, turns[: step + 1], self.env.outcome)

    def _pay(self, agent: str, entries: list[LedgerEntry], pending: dict[int, Question]) -> None:
        """Make a ledger the present one, and pay what it says beyond what was paid before."""
        outcome = self.env.outcome
        for name in self.env.agents:
            entries = with_env_reward(entries, name, self.env.rewards[name])
            if outcome is not None and self.payment.outcome_weight:
                entries = credit_outcome(entries, name, outcome.score, self.payment)
        before = {entry.step: entry.reward for entry in self._entries}
        self.rewards = dict.fromkeys(self.env.agents, 0.0)
        for entry in entries:
            self.rewards[entry.agent] += entry.reward - before.get(entry.step, 0.0)
        self._entries, self._pending = entries, pending
        if not pending:
            self._answers = {}
        self._cumulative_rewards[agent] = 0.0
        self._accumulate_rewards()
        self._tell()

    def _is_dead(self, agent: str) -> bool:
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _forget_answers(self) -> None:
        for begun in self._answers.values():
            withdraw(begun)
        self._answers = {}

    def _tell(self) -> None:
        self.infos = {name: self._info(name) for name in self.env.agents}

    def _info(self, agent: str) -> dict[str, Any]:
        info: dict[str, Any] = self.env.infos[agent]
        if not self._is_dead(agent):
            return info
        own = [entry_record(entry) for entry in self._entries if entry.agent == agent]
        return {**info, "ledger": own}


def _not_judged(why: str) -> CoachError:
    return CoachError(why, failure="sandbox_dead")
