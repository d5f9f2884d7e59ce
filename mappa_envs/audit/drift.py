"""How scores move while a team is trained, and whether outcomes move with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from mappa_envs.audit.actions import Action
from mappa_envs.audit.estimates import Estimate, estimate
from mappa_envs.audit.scores import by_role, episodes_of, scored, scores_of
from mappa_envs.audit.weighted import Floats, mean, slope

_ONE_ITERATION = "there is one iteration, or none"


@dataclass(frozen=True, slots=True)
class Point:
    """The mean score of a role after some iterations."""

    iteration: int
    score: float
    actions: int


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A role's scores on the same held-out tasks, again and again."""

    role: str
    mode: str
    """How actions were drawn: `"sampled"` or `"greedy"`."""
    tasks: int
    """Those with a score each time."""
    points: tuple[Point, ...]
    """Means over those tasks."""
    change: Estimate
    """Points from the first time to the last, paired by task; tasks are drawn anew."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a role's training scores."""

    role: str
    points: tuple[Point, ...]
    slope: Estimate
    """Points for each iteration."""


@dataclass(frozen=True, slots=True)
class ProxyGap:
    """Whether a role's scores rise in training and outcomes do not.

    Each change is that of a straight line from the first iteration to the last.
    """

    role: str
    score: Estimate
    """Of the score over 10, so that both are from 0 to 1."""
    outcome: Estimate
    gap: Estimate
    """The first less the second."""
    alarm: bool
    """The score surely rose, the outcome did not surely rise, and the gap is surely above 0."""


def held_out_scores(actions: Sequence[Action], modes: Sequence[str]) -> list[HeldOut]:
    """Follow the evaluations' scores.

    Args:
        actions: Of the evaluations.
        modes: For each action how its evaluation was played.
    """
    groups: dict[tuple[str, str], list[Action]] = defaultdict(list)
    for action, mode in zip(actions, modes, strict=True):
        if action.score is not None:
            groups[action.role, mode].append(action)
    return [_held_out(role, mode, own) for (role, mode), own in groups.items()]


def trends(actions: Sequence[Action]) -> list[Trend]:
    """Return the line through each role's scores over the iterations of training."""
    found = []
    for role, own in by_role(_dated(actions)).items():
        measure = partial(slope, x=_iterations(own), y=scores_of(own))
        slopes = estimate(measure, episodes_of(own), _ONE_ITERATION)
        found.append(Trend(role, _points(own), slopes))
    return found


def proxy_gaps(actions: Sequence[Action]) -> list[ProxyGap]:
    """Compare the trend of each role's scores with that of the outcomes."""
    known = [action for action in _dated(actions) if action.outcome is not None]
    return [_proxy_gap(role, own) for role, own in by_role(known).items()]


def _dated(actions: Sequence[Action]) -> list[Action]:
    return [action for action in scored(actions) if action.iteration is not None]


def _iterations(actions: Sequence[Action]) -> Floats:
    return np.array([action.iteration for action in actions], dtype=np.float64)


def _points(actions: Sequence[Action]) -> tuple[Point, ...]:
    groups: dict[int, list[float]] = defaultdict(list)
    for action in actions:
        if action.iteration is not None and action.score is not None:
            groups[action.iteration].append(action.score)
    return tuple(Point(n, fmean(own), len(own)) for n, own in sorted(groups.items()))


def _held_out(role: str, mode: str, actions: Sequence[Action]) -> HeldOut:
    iterations = sorted({action.iteration or 0 for action in actions})
    tasks: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for action in actions:
        tasks[action.task][action.iteration or 0].append(action.score or 0.0)
    always = {name: own for name, own in tasks.items() if len(own) == len(iterations)}
    if len(iterations) < 2 or not always:
        reason = (
            "there is one evaluation alone"
            if len(iterations) < 2
            else "no task was scored each time"
        )
        return HeldOut(role, mode, len(always), _points(actions), Estimate(reason=reason))
    first, last = iterations[0], iterations[-1]
    changes = np.array([fmean(own[last]) - fmean(own[first]) for own in always.values()])
    same = [action for action in actions if action.task in always]
    change = estimate(partial(mean, values=changes), range(len(changes)))
    return HeldOut(role, mode, len(always), _points(same), change)


def _proxy_gap(role: str, actions: Sequence[Action]) -> ProxyGap:
    dates = _iterations(actions)
    dates -= dates.min()
    span = dates.max()
    scores = scores_of(actions) / 10
    outcomes = np.array([action.outcome for action in actions], dtype=np.float64)

    def change(values: Floats) -> Estimate:
        measure = partial(_change, x=dates, y=values, span=span)
        return estimate(measure, episodes_of(actions), _ONE_ITERATION)

    score, outcome, gap = map(change, (scores, outcomes, scores - outcomes))
    alarm = score.above_zero and not outcome.above_zero and gap.above_zero
    return ProxyGap(role, score, outcome, gap, alarm)


def _change(weights: Floats, x: Floats, y: Floats, span: float) -> Floats:
    found: Floats = slope(weights, x, y) * span
    return found
