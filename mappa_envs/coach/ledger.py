"""The reward ledger: one entry per action, whose sums are exactly what the environment paid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from mappa_envs.types import LedgerEntry, Paying, Spent

Credit = Literal["every_action", "last_action"]

_RECORDED = tuple(f.name for f in fields(LedgerEntry) if f.name not in ("latency_s", "spent"))
MAX_WEIGHT = 1000
"""Of a coach: sums of larger rewards would no longer be exact."""
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
    pays: Paying = "first"
    """Which score pays: what the coach says at once, or in hindsight."""

    def __post_init__(self) -> None:
        for name in ("process_weight", "outcome_weight"):
            weight = getattr(self, name)
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not 0 <= weight <= MAX_WEIGHT:
                raise ValueError(f"{name} is {weight!r}; give a number from 0 to {MAX_WEIGHT}")
        for name, choices in (("credit", get_args(Credit)), ("pays", get_args(Paying))):
            if (choice := getattr(self, name)) not in choices:
                known = " or ".join(map(repr, choices))
                raise ValueError(f"{name} is {choice!r}; it must be {known}")

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
    """Return an entry as plain data without clocks; `spent` is left out where nothing was."""
    spent = {"spent": asdict(entry.spent)} if entry.spent is not None else {}
    return {name: getattr(entry, name) for name in _RECORDED} | spent


def entry_of(record: Mapping[str, Any]) -> LedgerEntry:
    """Return the entry that `entry_record` or a line of `write_ledger` describes.

    Raises:
        TypeError: a field is missing, or is none of an entry.
    """
    spent = record.get("spent")
    return LedgerEntry(**{**record, "spent": None if spent is None else Spent(**spent)})


def write_ledger(path: Path | str, entries: Iterable[LedgerEntry], **labels: str | int) -> None:
    """Append entries to a file of JSON lines, clocks and cost included.

    Args:
        path: The file; it is made if it is not there.
        entries: Of one episode.
        labels: Put into every line, e.g. `episode=3`; none may be named like a field.
    """
    if clash := labels.keys() & LedgerEntry.__dataclass_fields__.keys():
        raise ValueError(f"labels {sorted(clash)} are fields of an entry; choose other names")
    with open(path, "a", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps({**labels, **asdict(entry)}) + "\n")


def read_ledger(path: Path | str) -> list[tuple[dict[str, Any], LedgerEntry]]:
    """Return every entry that `write_ledger` wrote to a file, with its labels, in order.

    Raises:
        ValueError: a line is no entry; the message names the file and the line.
    """
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            known = {name: row.pop(name) for name in LedgerEntry.__dataclass_fields__}
            found.append((row, entry_of(known)))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: is no ledger entry: {error!r}") from None
    return found
