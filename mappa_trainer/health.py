"""Alarms: rules that say from a run's metrics that learning has gone wrong.

Whether an alarm is raised follows from the rows of metrics alone, so a resumed run raises the same
ones. Each is raised once for an agent, at the first iteration at which its rule holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mappa_trainer.recipe_tables import AlarmRule, AlarmsTable

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One rule that held for one agent."""

    name: str
    """The key in `[alarms]`."""
    agent: str
    iteration: int
    """Of the first row at which it held."""
    stops: bool
    message: str

    def __str__(self) -> str:
        return f"alarm {self.name}, iteration {self.iteration + 1}: {self.agent} {self.message}"


def alarms(rows: Sequence[Row], agents: Sequence[str], table: AlarmsTable) -> list[Alarm]:
    """Return every alarm that a run's metrics raise, oldest first.

    Args:
        rows: One for each iteration, oldest first; of an iteration in which an agent was not
            trained, its metrics are missing.
        agents: Of the team.
        table: The rules.
    """
    found = []
    for agent in agents:
        for name, rule, held in _rules(rows, agent, table):
            if rule.rule != "off":
                first = islice(held, 1)
                found += [Alarm(name, agent, i, rule.rule == "stop", said) for i, said in first]
    return sorted(found, key=lambda alarm: alarm.iteration)


def _rules(
    rows: Sequence[Row], agent: str, table: AlarmsTable
) -> Iterator[tuple[str, AlarmRule, Iterator[tuple[int, str]]]]:
    """Yield each rule with the iterations at which it holds."""
    yield "equal_scores", table.equal_scores, _equal_scores(rows, agent, table)
    yield "entropy_collapse", table.entropy_collapse, _entropy_collapse(rows, agent, table)
    yield "length_blow_up", table.length_blow_up, _length_blow_up(rows, agent, table)
    yield "truncation", table.truncation, _truncation(rows, agent, table)
    yield "kl_blow_up", table.kl_blow_up, _kl_blow_up(rows, agent, table)


def _values(rows: Sequence[Row], agent: str, name: str) -> list[tuple[int, float]]:
    """Return the iterations that have a metric of an agent, and its values."""
    key = f"{agent}/{name}"
    return [(int(row["iteration"]), float(row[key])) for row in rows if key in row]


def _equal_scores(rows: Sequence[Row], agent: str, table: AlarmsTable) -> Iterator[tuple[int, str]]:
    length, limit = 0, table.equal_scores.iterations
    for iteration, deviation in _values(rows, agent, "reward_std"):
        length = 0 if deviation else length + 1
        if length >= limit:
            yield iteration, f"had equal rewards for all its actions, {limit} iterations in a row"


def _entropy_collapse(
    rows: Sequence[Row], agent: str, table: AlarmsTable
) -> Iterator[tuple[int, str]]:
    values, share = _values(rows, agent, "entropy"), table.entropy_collapse.share
    for iteration, entropy in values[1:]:
        if entropy < share * values[0][1]:
            yield (
                iteration,
                f"has an entropy of {entropy:.2g} nats, after {values[0][1]:.2g} at first",
            )


def _length_blow_up(
    rows: Sequence[Row], agent: str, table: AlarmsTable
) -> Iterator[tuple[int, str]]:
    values, factor = _values(rows, agent, "tokens"), table.length_blow_up.factor
    for iteration, tokens in values[1:]:
        if tokens > factor * values[0][1]:
            yield (
                iteration,
                f"writes {tokens:.0f} tokens an action, after {values[0][1]:.0f} at first",
            )


def _truncation(rows: Sequence[Row], agent: str, table: AlarmsTable) -> Iterator[tuple[int, str]]:
    length, limit = 0, table.truncation.iterations
    for row in rows:
        if (share := _cut_share(row, agent)) is None:
            continue
        length = length + 1 if share > table.truncation.share else 0
        if length >= limit:
            yield (
                int(row["iteration"]),
                f"reached its token limit with {share:.0%} of its actions, above "
                f"{table.truncation.share:.0%} for {limit} iterations in a row",
            )


def _cut_share(row: Row, agent: str) -> float | None:
    """Return the share of actions that were cut off, those left out for it included."""
    kept = float(row.get(f"{agent}/actions", 0))
    left_out = float(row.get(f"{agent}/dropped_truncated", 0))
    if not kept + left_out:
        return None
    return (kept * float(row.get(f"{agent}/cut_share", 0.0)) + left_out) / (kept + left_out)


def _kl_blow_up(rows: Sequence[Row], agent: str, table: AlarmsTable) -> Iterator[tuple[int, str]]:
    for iteration, kl in _values(rows, agent, "kl"):
        if kl > table.kl_blow_up.nats:
            yield iteration, f"is {kl:.1f} nats a token away from the reference"
