"""What the ledger says of a turn, made from what the coach said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mappa_envs.coach.judging import Judgement, Question
from mappa_envs.coach.ledger import Payment
from mappa_envs.types import Assessment, LedgerEntry, Spent, Status


def entry_of_turn(
    question: Question, judgement: Judgement | None, payment: Payment, coach: str
) -> LedgerEntry:
    """Return the entry of a turn that is judged for the first time.

    Args:
        question: What the coach is, or was, asked.
        judgement: Its answer; None while it is on its way.
        payment: How actions are paid.
        coach: The id of the coach.
    """
    turn = question.turn
    said = judgement.answer if judgement is not None else None
    entry = LedgerEntry(
        step=turn.step,
        agent=turn.agent,
        role=turn.role,
        index=turn.index,
        status="pending",
        score=None if judgement is None else judgement.score,
        process_weight=payment.process_weight,
        outcome_weight=payment.outcome_weight,
        outcome=None,
        reward=0.0,
        rationale="" if judgement is None else judgement.why,
        coach=_judge(said) or coach,
        failure=None if judgement is None else judgement.failure,
        truth_shown=question.context.truth is not None,
        paid_by=payment.pays,
        prompt_hash=said.prompt_hash if isinstance(said, Assessment) else None,
        spent=None if said is None else said.spent,
        latency_s=0.0 if judgement is None else judgement.latency_s,
    )
    if judgement is None or payment.pays == "hindsight":
        return entry
    return _paid(entry, judgement.score, payment)


def with_hindsight(entry: LedgerEntry, judgement: Judgement, payment: Payment) -> LedgerEntry:
    """Return an entry with what the coach said when it looked back."""
    said = judgement.answer
    entry = replace(
        entry,
        hindsight_score=judgement.score,
        hindsight_rationale=judgement.why,
        hindsight_failure=judgement.failure,
        spent=_sum(entry.spent, said.spent),
        latency_s=entry.latency_s + judgement.latency_s,
    )
    if payment.pays == "first":
        return entry
    return _paid(entry, judgement.score, payment)


def with_env_reward(entries: Sequence[LedgerEntry], agent: str, paid: float) -> list[LedgerEntry]:
    """Return the entries, with what the environment itself paid noted at the last action."""
    noted = list(entries)
    own = [i for i, entry in enumerate(entries) if entry.agent == agent] if paid else []
    if own:
        last = own[-1]
        noted[last] = replace(noted[last], env_reward=noted[last].env_reward + paid)
    return noted


def _paid(entry: LedgerEntry, score: float | None, payment: Payment) -> LedgerEntry:
    status: Status = "unscored" if score is None else "scored"
    reward = 0.0 if score is None else payment.process(score)
    return replace(entry, status=status, reward=reward)


def _judge(said: Assessment | Exception | None) -> str | None:
    return said.coach if isinstance(said, Assessment) else None


def _sum(first: Spent | None, second: Spent | None) -> Spent | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
