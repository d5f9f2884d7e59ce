"""Pays each action by a coach's judgement instead of paying the outcome once at the end."""

from __future__ import annotations

import numbers
import time
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]
from pettingzoo.utils.wrappers import BaseWrapper  # type: ignore[import-untyped]

from mappa_envs.coach.ledger import Payment, credit_outcome, entry_record
from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.errors import CoachError
from mappa_envs.types import Assessment, LedgerEntry, Message, Turn

Observation = dict[str, tuple[Message, ...]]


class CoachWrapper(BaseWrapper[str, Observation, str]):  # type: ignore[misc]
    """Scores every action and keeps the ledger.

    Wraps a `PipelineEnv`, with or without other PettingZoo wrappers between. The wrapper owns its
    own `rewards` and cumulative rewards and never writes into the wrapped environment.

    A turn the coach could not judge is `unscored` and pays nothing, the outcome included:
    PettingZoo needs a float, so a plain loop reads 0.0, and the ledger says that this is no score.
    At an agent's dead turn `infos[agent]["ledger"]` holds the agent's entries as plain data.
    """

    def __init__(
        self,
        env: AECEnv[str, Observation, str],
        coach: Coach,
        payment: Payment | None = None,
    ) -> None:
        super().__init__(env)
        self.coach = coach
        self.payment = payment or Payment()

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """One entry per action of the episode so far, oldest first."""
        return tuple(self._entries)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode with an empty ledger."""
        super().reset(seed=seed, options=options)
        self._entries: list[LedgerEntry] = []
        self.rewards = dict.fromkeys(self.env.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.env.agents, 0.0)
        self.infos = dict(self.env.infos)

    def step(self, action: str | None) -> None:
        """Take one action and pay for it."""
        if not self.env.agents:
            super().step(action)  # says that the episode is over
            return
        agent = self.env.agent_selection
        live = not (self.env.terminations[agent] or self.env.truncations[agent])
        super().step(action)
        self.rewards = dict.fromkeys(self.env.agents, 0.0)
        if live:
            self._cumulative_rewards[agent] = 0.0
            self._pay(agent)
            self._accumulate_rewards()
        else:
            del self._cumulative_rewards[agent]
        self.infos = {name: self._info(name) for name in self.env.agents}

    def _pay(self, agent: str) -> None:
        turns: tuple[Turn, ...] = self.env.turns
        entry = self._judge(turns[-1], turns[:-1])
        self._entries.append(entry)
        self.rewards[agent] += entry.reward
        outcome = self.env.outcome
        if outcome is not None and self.payment.outcome_weight:
            for name in self.env.agents:
                self._pay_outcome(name, outcome.score)

    def _pay_outcome(self, agent: str, outcome: float) -> None:
        credited = credit_outcome(self._entries, agent, outcome, self.payment)
        paid = [new.reward - old.reward for old, new in zip(self._entries, credited, strict=True)]
        self._entries = credited
        self.rewards[agent] += sum(paid)

    def _judge(self, turn: Turn, history: tuple[Turn, ...]) -> LedgerEntry:
        start = time.perf_counter()
        assessment: Assessment | None = None
        try:
            assessment = self._assess(turn, history)
            why = assessment.rationale
        except CoachError as error:
            why = str(error)
        return LedgerEntry(
            step=turn.step,
            agent=turn.agent,
            role=turn.role,
            index=turn.index,
            status="unscored" if assessment is None else "scored",
            score=None if assessment is None else assessment.score,
            process_weight=self.payment.process_weight,
            outcome_weight=self.payment.outcome_weight,
            outcome=None,
            reward=0.0 if assessment is None else self.payment.process(assessment.score),
            rationale=why,
            coach=self.coach.id,
            latency_s=time.perf_counter() - start,
        )

    def _assess(self, turn: Turn, history: tuple[Turn, ...]) -> Assessment:
        if self.env.end_reason == "sandbox_dead":
            raise CoachError("not judged: the sandbox died during the action")
        context = CoachContext(problem=self.env.task.prompt, history=history)
        assessment = self.coach.assess(turn, context)
        score: Any = assessment.score
        is_number = isinstance(score, numbers.Real) and not isinstance(score, bool)
        if not is_number or not 0 <= score <= 10:
            raise CoachError(f"coach {self.coach.id!r} gave {score!r}; a score is a number 0 to 10")
        return Assessment(float(score), assessment.rationale)

    def _info(self, agent: str) -> dict[str, Any]:
        info: dict[str, Any] = self.env.infos[agent]
        if not (self.env.terminations[agent] or self.env.truncations[agent]):
            return info
        own = [entry_record(entry) for entry in self._entries if entry.agent == agent]
        return {**info, "ledger": own}
