"""Evaluation: what a team's episodes are worth, computed from the stored records alone.

An environment may say more of a task and its outcome than their names: `task["task_type"]` groups
tasks, and `outcome["details"]["comparable"]` names those of the details, numbers or truth values,
that mean the same for every task, so that they may be averaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from mappa_trainer.runlog import Record
from mappa_trainer.statistics import Interval, bootstrap

SOLVED = 1.0
"""The outcome from which a task counts as solved: full marks, so no half-right answer is one."""
Measure = Callable[[Record], float | None]
"""A number of one episode record, or None where the episode says nothing about it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured quantity, with its value for each problem."""

    name: str
    per_problem: Mapping[str, float]
    """Keyed by `problem_key`; samples of one problem are averaged."""

    @property
    def mean(self) -> float:
        """The mean over problems; NaN when no problem has a value."""
        return fmean(self.per_problem.values()) if self.per_problem else float("nan")


def problem_key(record: Record) -> str:
    """Return what tells problems apart: the task's id, or its index where there is none.

    An index counts on past the end of a split, so it can name a problem a second time.
    """
    return str(record["task"].get("id", record["options"]["task"]))


def measure(records: Sequence[Record], name: str, value: Measure) -> Measurement:
    """Measure every episode and average the samples of each problem."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        number = value(record)
        if number is not None:
            values[problem_key(record)].append(number)
    return Measurement(name, {problem: fmean(found) for problem, found in values.items()})


def change(before: Measurement, after: Measurement) -> Interval:
    """Return after minus before, paired by problem, with its bootstrap 95 % interval.

    Raises:
        ValueError: no problem was measured both times.
    """
    both = sorted(before.per_problem.keys() & after.per_problem.keys())
    return bootstrap([after.per_problem[p] - before.per_problem[p] for p in both])


def outcome(record: Record) -> float | None:
    """The task's own verdict, 0 to 1; None where the episode was cut off before it."""
    return None if record["outcome"] is None else float(record["outcome"]["score"])


def is_solved(verdict: Mapping[str, Any]) -> bool:
    """Whether an outcome, e.g. `{"score": 1.0}`, is that of a solved task."""
    return bool(verdict["score"] >= SOLVED)


def unplayed(records: Sequence[Record]) -> str:
    """Say how many actions are empty because the prompt was too long; nothing where none is."""
    actions = [action for record in records for action in record["actions"]]
    cut = sum(action["finish_reason"] == "prompt_too_long" for action in actions)
    if not cut:
        return ""
    return (
        f"{cut} of {len(actions)} actions are empty: the prompt and sampling.max_new_tokens are "
        "more than the model's context; what is measured is not what the team can do"
    )


def coach_score(agent: str, kind: str = "score") -> Measure:
    """Return the mean coach score of an agent's actions, 0 to 10; unscored ones left out.

    Args:
        agent: Whose actions.
        kind: `"score"`, what the coach said at once, or `"hindsight_score"`.
    """

    def value(record: Record) -> float | None:
        entries = [action["ledger"] for action in _actions(record, agent)]
        scores = [entry.get(kind) for entry in entries if entry]
        return _mean([score for score in scores if score is not None])

    return value


def tokens(agent: str) -> Measure:
    """Return the mean length of an agent's actions in tokens, of those whose length is known."""

    def value(record: Record) -> float | None:
        lengths = [action["tokens"] for action in _actions(record, agent)]
        return _mean([float(length) for length in lengths if length is not None])

    return value


def tool_calls(agent: str) -> Measure:
    """Return the share of an agent's actions with tool calls that could all be run."""

    def value(record: Record) -> float | None:
        turns = [action["turn"] for action in _actions(record, agent)]
        return _mean([float(_well_formed(turn)) for turn in turns if turn is not None])

    return value


def detail(name: str) -> Measure:
    """Return a number of the outcome's details; a truth value is 0 or 1."""

    def value(record: Record) -> float | None:
        found = _details(record).get(name)
        return None if found is None else float(found)

    return value


def report(records: Sequence[Record], agents: Sequence[str]) -> list[Measurement]:
    """Measure everything this package reports about a set of episodes.

    Where tasks have a type, what is comparable of their outcomes is reported for each type, and for
    all tasks together if every type has it.
    """
    by_type = _by_type(records)
    of_types = [_comparable(own) for own in by_type.values()]
    found = [measure(records, "outcome", outcome)]
    for name in _comparable(records):
        if all(name in of_type for of_type in of_types):
            found.append(measure(records, f"outcome/{name}", detail(name)))
    for agent in agents:
        found += _scores(records, agent)
        found.append(measure(records, f"{agent}/tokens", tokens(agent)))
        found.append(measure(records, f"{agent}/tool_calls", tool_calls(agent)))
    for kind, own in by_type.items():
        found += _report_type(kind, own, agents)
    return found


def _report_type(
    kind: str, records: Sequence[Record], agents: Sequence[str]
) -> Iterator[Measurement]:
    yield measure(records, f"{kind}/outcome", outcome)
    for name in _comparable(records):
        yield measure(records, f"{kind}/outcome/{name}", detail(name))
    for agent in agents:
        for measured in _scores(records, agent):
            yield replace(measured, name=f"{kind}/{measured.name}")


def _scores(records: Sequence[Record], agent: str) -> list[Measurement]:
    """Measure an agent's scores, where a coach was to judge; those in hindsight where it did."""
    if all(action["ledger"] is None for record in records for action in _actions(record, agent)):
        return []
    first = measure(records, f"{agent}/score", coach_score(agent))
    second = measure(records, f"{agent}/hindsight_score", coach_score(agent, "hindsight_score"))
    return [first, second] if second.per_problem else [first]


def _by_type(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each type of task, the types sorted; none where tasks have no type."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if (kind := record["task"].get("task_type")) is not None:
            groups[str(kind)].append(record)
    return dict(sorted(groups.items()))


def _comparable(records: Sequence[Record]) -> list[str]:
    """Return the comparable details that an episode has, in the order in which they come."""
    return list(
        dict.fromkeys(
            name
            for record in records
            for name in _details(record).get("comparable", ())
            if _details(record).get(name) is not None
        )
    )


def _details(record: Record) -> Mapping[str, Any]:
    details: Mapping[str, Any] = (record["outcome"] or {}).get("details", {})
    return details


def _actions(record: Record, agent: str) -> list[Mapping[str, Any]]:
    return [action for action in record["actions"] if action["agent"] == agent]


def _well_formed(turn: Mapping[str, Any]) -> bool:
    results = turn["tool_results"]
    return bool(results) and all(result["exit_code"] is not None for result in results)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
