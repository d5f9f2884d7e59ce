"""How the coach uses its scale, and what it gives to roles, to types of task, and to length."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from mappa_envs.audit.actions import Action
from mappa_envs.audit.estimates import FEWEST_EPISODES, Estimate, estimate
from mappa_envs.audit.weighted import Floats, correlation, entropy_bits, gap, mean, slope

BIN: Final = 0.5
"""Points: the width of a bin of scores."""
LEAST_GAP: Final = 0.5
"""Points between types of task from which on a gap is an alarm."""
LEAST_SLOPE: Final = 0.5
"""Points for each doubling of the length from which on the slope is an alarm."""
EVERYBODY: Final = "all roles"


@dataclass(frozen=True, slots=True)
class Saturation:
    """How scores are spread over the scale; shares are of the scored actions."""

    role: str
    actions: int
    at_0: float
    at_10: float
    near_0: float
    """At most 0.5."""
    near_10: float
    """At least 9.5."""
    entropy_bits: float
    """Of the scores rounded to the next half; log2(21) = 4.39 at most."""
    distinct: int
    """Different scores, unrounded."""
    histogram: tuple[int, ...]
    """How many round to 0, 0.5, 1, ... 10; a score between two goes up."""


@dataclass(frozen=True, slots=True)
class EqualGroups:
    """Groups whose scores are all equal: nothing can be learnt from them."""

    agent: str
    groups: int
    """Of the agent's actions in one iteration, with at least 2 scores."""
    equal: int


@dataclass(frozen=True, slots=True)
class MeanScore:
    """The mean score of a role on one type of task, and the outcome of those episodes."""

    role: str
    task_type: str | None
    """None for all."""
    score: Estimate
    outcome: Estimate


@dataclass(frozen=True, slots=True)
class TypeGap:
    """By how many points a role is scored higher on one type of task than on another."""

    role: str
    task_type: str
    other: str
    gap: Estimate
    """Its interval is wider where a role has several gaps, so that one in 20 roles errs."""
    alarm: bool


@dataclass(frozen=True, slots=True)
class Correlation:
    """How a role's scores go with something else, by rank: -1 to 1."""

    role: str
    measured: str
    """`"outcome"`, `"exit_0"`, `"timed_out"` or `"missing"`."""
    correlation: Estimate


@dataclass(frozen=True, slots=True)
class LengthSlope:
    """By how many points a role's score rises when its action is twice as long."""

    role: str
    unit: str
    slope: Estimate
    alarm: bool


def scored(actions: Sequence[Action]) -> list[Action]:
    """Return the actions with a score."""
    return [action for action in actions if action.score is not None]


def by_role(actions: Sequence[Action]) -> dict[str, list[Action]]:
    """Return the actions of each role, in order of appearance."""
    groups: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        groups[action.role].append(action)
    return dict(groups)


def saturation(actions: Sequence[Action]) -> list[Saturation]:
    """Return how each role's scores are spread, and those of all."""
    own = by_role(scored(actions))
    groups = {**own, EVERYBODY: list(itertools.chain(*own.values()))} if len(own) > 1 else own
    return [_saturation(role, scores_of(group)) for role, group in groups.items()]


def equal_groups(actions: Sequence[Action]) -> list[EqualGroups]:
    """Count, for each agent, the iterations in which all its scores are equal."""
    groups: dict[str, dict[int | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    for action in scored(actions):
        groups[action.agent][action.iteration].append(float(action.score or 0.0))
    found = []
    for agent, iterations in groups.items():
        sizes = [len(set(own)) for own in iterations.values() if len(own) > 1]
        found.append(EqualGroups(agent, len(sizes), sizes.count(1)))
    return found


def mean_scores(actions: Sequence[Action]) -> list[MeanScore]:
    """Return the means of each role, of all tasks and of each type."""
    found = []
    for role, own in by_role(actions).items():
        found.append(_mean_score(role, None, own))
        for kind in task_types(own):
            found.append(_mean_score(role, kind, [a for a in own if a.task_type == kind]))
    return found


def type_gaps(actions: Sequence[Action]) -> list[TypeGap]:
    """Compare each two types of task, for each role; the higher one comes first."""
    found = []
    for role, own in by_role(scored(actions)).items():
        pairs = list(itertools.combinations(task_types(own), 2))
        for pair in pairs:
            found.append(_type_gap(role, pair, own, tail=0.025 / len(pairs)))
    return found


def correlations(actions: Sequence[Action]) -> list[Correlation]:
    """Return how each role's scores go with the outcome and with what is certain."""
    found = []
    for role, own in by_role(scored(actions)).items():
        measured = {"outcome": [(a, a.outcome) for a in own]}
        for name in ("exit_0", "timed_out", "missing"):
            measured[name] = [(a, getattr(a.facts, name)) for a in own]
        for name, pairs in measured.items():
            known = [(a, float(value)) for a, value in pairs if value is not None]
            found.append(Correlation(role, name, _correlation(name, known)))
    return found


def length_slopes(actions: Sequence[Action]) -> list[LengthSlope]:
    """Return how much length goes with a higher score; empty actions are left out."""
    found = []
    for role, own in by_role(scored(actions)).items():
        long = [action for action in own if action.length > 0]
        doublings = np.array([math.log2(action.length) for action in long])
        scores = scores_of(long)
        estimated = estimate(
            partial(slope, x=doublings, y=scores),
            episodes_of(long),
            "all actions are of one length",
        )
        sure = estimated.above_zero or estimated.below_zero
        alarm = sure and abs(estimated.value or 0.0) >= LEAST_SLOPE
        found.append(LengthSlope(role, long[0].unit if long else "", estimated, alarm))
    return found


def task_types(actions: Sequence[Action]) -> list[str]:
    """Return the types of task there are, sorted."""
    return sorted({action.task_type for action in actions if action.task_type is not None})


def scores_of(actions: Sequence[Action]) -> Floats:
    """Return the scores of scored actions."""
    return np.array([action.score for action in actions], dtype=np.float64)


def episodes_of(actions: Sequence[Action]) -> list[int]:
    """Return for each action its episode."""
    return [action.episode for action in actions]


def mean_of(values: Floats, actions: Sequence[Action], undefined: str) -> Estimate:
    """Estimate the mean of a value of each action."""
    return estimate(partial(mean, values=values), episodes_of(actions), undefined)


def score_gap(actions: Sequence[Action], chosen: Sequence[bool], tail: float = 0.025) -> Estimate:
    """Estimate by how many points some scored actions are scored higher than the others.

    Args:
        actions: Both.
        chosen: For each action whether it is one of the some.
        tail: As of `estimate`.
    """
    mask = np.array(chosen, dtype=np.bool_)
    groups = [
        len({a.episode for a, picked in zip(actions, chosen, strict=True) if picked is wanted})
        for wanted in (True, False)
    ]
    measure = partial(gap, values=scores_of(actions), chosen=mask)
    if not all(groups):
        return Estimate(actions=len(actions), reason="there is nothing to compare with")
    found = estimate(measure, episodes_of(actions), tail=tail)
    if min(groups) < FEWEST_EPISODES:
        reason = f"needs {FEWEST_EPISODES} episodes on each side, has {min(groups)}"
        return replace(found, low=None, high=None, reason=reason)
    return found


def _saturation(role: str, scores: Floats) -> Saturation:
    bins = np.floor(scores / BIN + 0.5).astype(int)
    return Saturation(
        role=role,
        actions=len(scores),
        at_0=float((scores == 0).mean()),
        at_10=float((scores == 10).mean()),
        near_0=float((scores <= 0.5).mean()),
        near_10=float((scores >= 9.5).mean()),
        entropy_bits=entropy_bits(bins),
        distinct=len(np.unique(scores)),
        histogram=tuple(np.bincount(bins, minlength=int(10 / BIN) + 1).tolist()),
    )


def _mean_score(role: str, kind: str | None, actions: Sequence[Action]) -> MeanScore:
    own = scored(actions)
    ended = [action for action in actions if action.outcome is not None]
    outcomes = np.array([action.outcome for action in ended], dtype=np.float64)
    return MeanScore(
        role,
        kind,
        mean_of(scores_of(own), own, "no action has a score"),
        mean_of(outcomes, ended, "no episode has an outcome"),
    )


def _type_gap(role: str, pair: tuple[str, str], actions: Sequence[Action], tail: float) -> TypeGap:
    own = [action for action in actions if action.task_type in pair]
    values = scores_of(own)
    means = [values[[a.task_type == kind for a in own]].mean() for kind in pair]
    one, other = pair if means[0] >= means[1] else pair[::-1]
    estimated = score_gap(own, [action.task_type == one for action in own], tail)
    alarm = estimated.above_zero and (estimated.value or 0.0) >= LEAST_GAP
    return TypeGap(role, one, other, estimated, alarm)


def _correlation(name: str, pairs: Sequence[tuple[Action, float]]) -> Estimate:
    own = [action for action, _ in pairs]
    scores, values = scores_of(own), np.array([value for _, value in pairs])
    reasons = {
        "outcome": "no episode has an outcome",
        "missing": "no action hands over",
    }
    if not pairs:
        return Estimate(reason=reasons.get(name, "no action has a program"))
    undefined = "all scores are equal" if len(np.unique(scores)) == 1 else f"{name} never differs"
    return estimate(partial(correlation, x=scores, y=values), episodes_of(own), undefined)
