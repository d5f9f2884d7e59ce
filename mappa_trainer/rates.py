"""What several samples of each problem are worth together: mean@k, pass@k and majority@k."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mappa_trainer.evaluate import SOLVED, Measurement, is_solved, problem_key
from mappa_trainer.runlog import Record
from mappa_trainer.statistics import bootstrap, pass_at_k

Outcome = Mapping[str, Any]


def rates(records: Sequence[Record], samples: int) -> list[Measurement]:
    """Return mean@k, pass@1, pass@k and majority@k for k samples of each problem.

    Problems of which a sample was cut off before its outcome are left out, and so is majority@k
    where no outcome has an answer.

    Args:
        records: Episodes, `samples` of each problem.
        samples: k.
    """
    whole = {
        problem: outcomes
        for problem, outcomes in _by_problem(records).items()
        if len(outcomes) >= samples
    }
    solved = {problem: sum(map(is_solved, outcomes)) for problem, outcomes in whole.items()}
    found = [
        Measurement(
            f"mean@{samples}",
            {p: fmean(float(o["score"]) for o in outcomes) for p, outcomes in whole.items()},
        )
    ]
    for k in sorted({1, samples}):
        values = {p: pass_at_k(len(whole[p]), solved[p], k) for p in whole}
        found.append(Measurement(f"pass@{k}", values))
    if samples > 1 and any(o.get("answer") is not None for of in whole.values() for o in of):
        votes = {problem: majority(outcomes) for problem, outcomes in whole.items()}
        found.append(Measurement(f"majority@{samples}", votes))
    return [one for one in found if one.per_problem]


def majority(outcomes: Sequence[Outcome]) -> float:
    """Return whether the most frequent answer of one problem's samples is right, 0 to 1.

    Answers that were judged right are one answer, however they are written; others are equal when
    their texts are, apart from case and spaces. A sample without an answer has no vote. Among
    several answers with the most votes one is drawn: the value is the chance that it is right.
    """
    votes = Counter(_ballot(outcome) for outcome in outcomes if outcome.get("answer") is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return winners.count(_RIGHT) / len(winners)


def rate_line(rate: Measurement) -> str:
    """Show a rate with its bootstrap 95 % interval over problems."""
    interval = bootstrap(list(rate.per_problem.values()))
    meaning = f"  (solved: an outcome of {SOLVED:g})" if rate.name.startswith("pass") else ""
    return f"{rate.name}  {interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]{meaning}"


_RIGHT = ("right",)


def _ballot(outcome: Outcome) -> tuple[str, ...]:
    if is_solved(outcome):
        return _RIGHT
    return ("wrong", "".join(str(outcome["answer"]).split()).casefold())


def _by_problem(records: Sequence[Record]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for record in records:
        if record["outcome"] is not None:
            found[problem_key(record)].append(record["outcome"])
    return found
