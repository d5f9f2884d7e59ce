"""What the ledgers of a set of episodes say of the coach: what it left unscored, and its cost.

Computed from the stored records alone. Of a ledger entry `status`, `failure`, `spent` and what it
says of a second look in hindsight are read;
actions without an entry are of an environment without a coach and are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor, log10
from pathlib import Path
from typing import Any

from mappa_trainer.errors import UnjudgedError
from mappa_trainer.runlog import Record

OVER_BUDGET = "over_budget"
"""The failure that stops a run, however few actions it befell."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """How many of a number of actions have no score, and why."""

    actions: int
    """All that a coach was to judge, scored or not."""
    failures: Mapping[str, int]
    """Of those without a score, how many by kind of failure, the most frequent first."""
    example: str = ""
    """What the ledger says of the first action of the most frequent kind."""

    @property
    def total(self) -> int:
        """How many have no score."""
        return sum(self.failures.values())

    @property
    def share(self) -> float:
        """0 to 1; 0 where nothing was to be judged."""
        return self.total / self.actions if self.actions else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What judging cost, e.g. `Cost(96, 80_000, 3_000, 0.012)`."""

    calls: int
    """Requests to a model; none for what a cache held."""
    input_tokens: int
    output_tokens: int
    usd: float | None
    """US dollars; None where a price is not known."""

    def __add__(self, other: Cost) -> Cost:
        """Return both together; a price that is not known makes the sum unknown."""
        known = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Cost(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            known,
        )

    def __str__(self) -> str:
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        return f"{calls}, price not known" if self.usd is None else f"{dollars(self.usd)}, {calls}"


def unscored(records: Iterable[Record], agent: str | None = None) -> Unscored:
    """Count what has no score, of one agent or of all."""
    entries = list(_entries(records, agent))
    missing = [entry for entry in entries if entry["status"] != "scored"]
    failures = dict(Counter(map(_failure, missing)).most_common())
    most = next(iter(failures), None)
    examples = (str(entry.get("rationale", "")) for entry in missing if _failure(entry) == most)
    return Unscored(len(entries), failures, next(examples, ""))


def cost(records: Iterable[Record], agent: str | None = None) -> Cost | None:
    """Add up what judging cost, of one agent or of all; None where no model was asked."""
    spent = (entry.get("spent") for entry in _entries(records, agent))
    return total_cost(one for one in spent if one)


def total_cost(rows: Iterable[Mapping[str, Any]]) -> Cost | None:
    """Add up rows that have the fields of a `Cost`; None where there are none."""
    total = None
    for row in rows:
        one = Cost(row["calls"], row["input_tokens"], row["output_tokens"], row["usd"])
        total = one if total is None else total + one
    return total


def cost_rows(phase: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what judging cost in a phase of a run, a row for each agent; see `costs.jsonl`."""
    found = {agent: cost(records, agent) for agent in _agents(records)}
    return [{"phase": phase, "agent": agent, **asdict(one)} for agent, one in found.items() if one]


def unscored_metrics(records: Sequence[Record], agents: Sequence[str]) -> dict[str, float]:
    """Return `unscored_share`, `unscored/FAILURE` and `AGENT/unscored_share`."""
    team = unscored(records)
    if not team.actions:
        return {}
    found: dict[str, float] = {"unscored_share": team.share}
    found |= {f"unscored/{failure}": count for failure, count in team.failures.items()}
    each = {agent: unscored(records, agent) for agent in agents}
    return found | {
        f"{name}/unscored_share": own.share for name, own in each.items() if own.actions
    }


def cost_metrics(records: Sequence[Record], agents: Sequence[str]) -> dict[str, float]:
    """Return `coach/calls` and so on, and the same for each agent, e.g. `AGENT/coach_usd`.

    Nothing where no model was asked, and no `usd` where a price is not known.
    """
    costs = {"coach/": cost(records)}
    costs |= {f"{agent}/coach_": cost(records, agent) for agent in agents}
    return {
        f"{where}{name}": value
        for where, one in costs.items()
        if one is not None
        for name, value in asdict(one).items()
        if value is not None
    }


def unscored_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the counts by kind of failure that `unscored_metrics` put into metrics."""
    return _under("unscored/", metrics)


def cost_of(metrics: Mapping[str, float]) -> Cost | None:
    """Return what `cost_metrics` put into metrics for all agents together."""
    found = _under("coach/", metrics)
    return total_cost([{"usd": None, **found}] if found else [])


def in_words(failures: Mapping[str, float]) -> str:
    """Return e.g. `"12 unscored: 8 unreachable, 4 unparsable"`; empty where there are none."""
    if not failures:
        return ""
    kinds = ", ".join(f"{count:.0f} {failure}" for failure, count in failures.items())
    return f"{sum(failures.values()):.0f} unscored: {kinds}"


def coach_line(total: Cost | None) -> str:
    """Return e.g. `"coach $0.012, 96 calls"`; empty where no model was asked."""
    return "" if total is None else f"coach {total}"


def run_cost_lines(rows: Sequence[Record]) -> Iterator[str]:
    """Yield what `costs.jsonl` says in all, and of each agent; nothing where it says nothing."""
    if (total := total_cost(rows)) is not None:
        agents = dict.fromkeys(row["agent"] for row in rows)
        each = {name: total_cost(row for row in rows if row["agent"] == name) for name in agents}
        tokens = f"{total.input_tokens:,} tokens in, {total.output_tokens:,} out"
        yield f"the whole run: {coach_line(total)}, {tokens}"
        yield "  ".join(f"{name} {own}" for name, own in each.items())


def dollars(usd: float) -> str:
    """Return an amount to the cent, or to two digits that count, e.g. `"$14.20"`, `"$0.0012"`."""
    digits = 2 if usd <= 0 else max(2, 1 - floor(log10(usd)))
    return f"${usd:,.{digits}f}"


def check_budget(records: Iterable[Record], phase: str, run: Path) -> None:
    """Stop a run whose coach ran out of money, be it only for a second look.

    Raises:
        UnjudgedError: an action was not judged because the budget is spent.
    """
    entries = list(_entries(records, None))
    if over := [entry for entry in entries if _is_over_budget(entry)]:
        said = str(over[0].get("rationale", ""))
        raise UnjudgedError(
            f"{phase}: the coach's budget is spent, {len(over)} of {len(entries)} actions were "
            f"not judged for it ({said!r:.200}); nothing was trained on them; raise "
            f"coach.budget_usd in {run / 'config.json'}, then go on with: "
            f"mappa train --resume {run}"
        )


def check_share(found: Unscored, limit: float, phase: str, run: Path) -> None:
    """Stop a run before it trains on an iteration of which too little is known.

    Raises:
        UnjudgedError: more than `limit` of the actions, 0 to 1, are unscored.
    """
    if found.share > limit:
        raise UnjudgedError(
            f"{phase}: {found.share:.0%} of {found.actions} actions are unscored, more than "
            f"train.max_unscored = {limit:g}; {in_words(found.failures)} "
            f"({found.example!r:.200}); nothing was trained on them; see "
            f"{run / 'episodes' / phase}.jsonl, mend the cause, then go on with: "
            f"mappa train --resume {run}"
        )


def _entries(records: Iterable[Record], agent: str | None) -> Iterator[Mapping[str, Any]]:
    for record in records:
        for action in record["actions"]:
            if action["ledger"] is not None and agent in (None, action["agent"]):
                yield action["ledger"]


def _under(prefix: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


def _agents(records: Iterable[Record]) -> list[str]:
    """Return who acted, in the order of their first actions."""
    return list(
        dict.fromkeys(action["agent"] for record in records for action in record["actions"])
    )


def _failure(entry: Mapping[str, Any]) -> str:
    """Return why the look that pays gave no score."""
    in_hindsight = entry.get("paid_by") == "hindsight"
    return str(entry.get("hindsight_failure" if in_hindsight else "failure") or "unjudged")


def _is_over_budget(entry: Mapping[str, Any]) -> bool:
    return OVER_BUDGET in (entry.get("failure"), entry.get("hindsight_failure"))
