"""The reward ledger: one entry per action, whose sums are exactly what the environment paid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mappa_envs.types import LedgerEntry, Status

Credit = Literal["every_action", "last_action"]

GRID = 2.0**-40
"""Rewards are whole multiples of this, so float sums of them are exact in every order."""


def on_grid(value: float) -> float:
    """Round to the nearest multiple of `GRID`; an error of at most 4.6e-13."""
    return round(value / GRID) * GRID


@dataclass(frozen=True, slots=True)
class Payment:
    """How an action is paid: weight * score / 10, plus weight * outcome by the credit rule."""

    process_weight: float = 1.0
    outcome_weight: float = 0.0
    credit: Credit = "every_action"
    """Whether the outcome is credited to every action of an agent, or to its last alone."""

    def process(self, score: float) -> float:
        """Return what a score of 0 to 10 pays."""
        return on_grid(self.process_weight * score / 10)

    def outcome(self, outcome: float) -> float:
        """Return what an outcome of 0 to 1 pays to one credited action."""
        return on_grid(self.outcome_weight * outcome)


def credit_outcome(
    entries: list[LedgerEntry], agent: str, outcome: float, payment: Payment
) -> list[LedgerEntry]:
    """Return the entries with the outcome credited to the agent's actions by the credit rule.

    An unscored action is paid nothing, the outcome included: no part of a reward is known for it.
    """
    own = [i for i, entry in enumerate(entries) if entry.agent == agent]
    chosen = own if payment.credit == "every_action" else own[-1:]
    credited = {i for i in chosen if entries[i].status == "scored"}
    return [
        replace(entry, outcome=outcome, reward=entry.reward + payment.outcome(outcome))
        if i in credited
        else entry
        for i, entry in enumerate(entries)
    ]


def entry_record(entry: LedgerEntry) -> dict[str, Any]:
    """Return an entry as plain data without clocks, so that equal episodes have equal records."""
    status: Status = entry.status
    return {
        "step": entry.step,
        "agent": entry.agent,
        "index": entry.index,
        "status": status,
        "score": entry.score,
        "process_weight": entry.process_weight,
        "outcome_weight": entry.outcome_weight,
        "outcome": entry.outcome,
        "reward": entry.reward,
        "rationale": entry.rationale,
        "coach": entry.coach,
    }
