"""What judging came to: failures, cost, whether the answer was shown, and the second look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Final

import numpy as np

from mappa_envs.audit.actions import Action
from mappa_envs.audit.estimates import Estimate, estimate
from mappa_envs.audit.scores import by_role, episodes_of, mean_of
from mappa_envs.audit.weighted import correlation
from mappa_envs.types import Spent

UNREAD: Final = ("unparsable", "out_of_range", "truncated")
"""Failures in which the coach answered and no verdict could be read."""
UNKNOWN: Final = "not said"
"""The failure of an unscored action whose ledger entry names none."""


@dataclass(frozen=True, slots=True)
class Judging:
    """What judging a role's actions came to."""

    role: str
    actions: int
    unscored: int
    failures: Mapping[str, int]
    """Unscored actions by the reason."""
    unread_share: float
    """Of the actions: the coach answered, and no verdict could be read."""
    truth_share: float
    """Of the actions: the coach saw the right answer."""
    asked: int
    """Actions for which a model was asked."""
    calls: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    """US dollars; None where a price is not known."""


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What a role's scores come to when the coach looks back."""

    role: str
    difference: Estimate
    """Mean points: the score in hindsight less the first one."""
    correlation: Estimate
    """Of the two, by rank."""


def judgings(actions: Sequence[Action]) -> list[Judging]:
    """Return what judging came to for each role; actions without a ledger entry are left out."""
    judged = [action for action in actions if action.judged]
    return [_judging(role, own) for role, own in by_role(judged).items()]


def hindsights(actions: Sequence[Action]) -> list[Hindsight]:
    """Compare both scores for each role whose coach looked back."""
    looked_back = by_role([action for action in actions if action.looked_back])
    return [_hindsight(role, own) for role, own in looked_back.items()]


def _judging(role: str, actions: Sequence[Action]) -> Judging:
    unscored = [action for action in actions if action.score is None]
    failures = Counter(action.failure or UNKNOWN for action in unscored)
    spent = [action.spent for action in actions if action.spent is not None]
    total = reduce(add, spent, Spent())
    return Judging(
        role=role,
        actions=len(actions),
        unscored=len(unscored),
        failures=dict(failures.most_common()),
        unread_share=sum(failures[kind] for kind in UNREAD) / len(actions),
        truth_share=sum(action.truth_shown for action in actions) / len(actions),
        asked=len(spent),
        calls=total.calls,
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        usd=total.usd,
    )


def _hindsight(role: str, actions: Sequence[Action]) -> Hindsight:
    pairs = [
        (action, action.first_score, action.hindsight_score)
        for action in actions
        if action.first_score is not None and action.hindsight_score is not None
    ]
    own = [action for action, _, _ in pairs]
    first = np.array([score for _, score, _ in pairs], dtype=np.float64)
    second = np.array([score for _, _, score in pairs], dtype=np.float64)
    return Hindsight(
        role,
        mean_of(second - first, own, "no action has both scores"),
        estimate(
            partial(correlation, x=first, y=second),
            episodes_of(own),
            "no action has both scores, or one of them never differs",
        ),
    )
