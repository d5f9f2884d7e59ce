"""Advantage estimators: from the scores of one agent's actions to the advantages of their tokens.

An estimator is a plain function of all the actions that an agent took in an iteration:

    estimator(actions, *, kl_coef, gamma) -> advantages

Some compare an action with others of its group: the actions of the same agent, at the same turn, in
other samples of the same task. Such an estimator says so by the decorator `compares`.

Where the KL penalty is in the reward, every estimator adds `-kl_coef` times the KL of the token and
of those after it in the action, so the tokens of an action have advantages of their own. Where it
is in the loss, `kl_coef` is 0 here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeVar

from torch import Tensor

from mappa_trainer import lookup
from mappa_trainer.errors import TrainingError
from mappa_trainer.returns import VARIANCE_FLOOR, returns_to_go, whiten


@dataclass(frozen=True, slots=True)
class Action:
    """One action as an estimator sees it; T is the number of its sampled tokens."""

    score: float
    """What the action earned."""
    kl: Tensor
    """(T,): the estimated KL to the reference at each token."""
    group: Hashable = None
    """Actions that may be compared have equal groups."""
    joint_return: float | None = None
    """What all agents together earned from this action to the end of the episode; given to
    estimators that compare by task."""


Estimator = Callable[..., list[Tensor]]
"""`(actions, *, kl_coef, gamma) -> advantages`, one float32 (T,) for each action."""

Scope = Literal["prompt", "task"]
"""What the actions of a group have in common besides agent and turn: the very same prompt, or only
the task, while what other agents wrote may differ."""

E = TypeVar("E", bound=Estimator)


def compares(scope: Scope) -> Callable[[E], E]:
    """Mark an estimator as one that compares the actions of a group; see `Scope`."""

    def mark(estimator: E) -> E:
        estimator.scope = scope  # type: ignore[attr-defined]
        return estimator

    return mark


def scope_of(estimator: Estimator) -> Scope | None:
    """Return what the groups of an estimator have in common; None when it needs no groups."""
    scope: Scope | None = getattr(estimator, "scope", None)
    return scope


def reinforce(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Take the returns to go as they are (Williams 1992, without a baseline)."""
    return [values.float() for values in _returns(actions, kl_coef, gamma)]


def reinforce_plus_plus(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Whiten the returns to go over all tokens of all actions (REINFORCE++, arXiv 2501.03262).

    One action is enough; equal scores leave only the KL, and without KL all advantages are 0.
    """
    return whiten(_returns(actions, kl_coef, gamma))


@compares("prompt")
def reinforce_plus_plus_baseline(
    actions: Sequence[Action], *, kl_coef: float, gamma: float
) -> list[Tensor]:
    """Subtract the group's mean score, then go on as REINFORCE++ (arXiv 2501.03262, sec. 3)."""
    return whiten(_returns(_rescored(actions, _minus_mean), kl_coef, gamma))


@compares("prompt")
def grpo(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Subtract the group's mean score and divide by its deviation (GRPO, arXiv 2402.03300, 4.1.2).

    The deviation is the population's and at least 1e-4; equal scores have advantages of 0.
    """
    return reinforce(_rescored(actions, _standardised), kl_coef=kl_coef, gamma=gamma)


@compares("prompt")
def dr_grpo(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Subtract the group's mean score and divide by nothing (Dr. GRPO, arXiv 2503.20783).

    The paper's loss goes with it: `aggregation = "token_sum"` over a constant.
    """
    return reinforce(_rescored(actions, _minus_mean), kl_coef=kl_coef, gamma=gamma)


@compares("prompt")
def rloo(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Subtract the mean score of the group's other actions (RLOO, arXiv 2402.14740)."""
    return reinforce(_rescored(actions, _minus_others), kl_coef=kl_coef, gamma=gamma)


@compares("task")
def magrpo(actions: Sequence[Action], *, kl_coef: float, gamma: float) -> list[Tensor]:
    """Give every agent the team's return, less its mean over the samples of the task.

    The return of an action is what all agents earned from it to the end of the episode,
    undiscounted (MAGRPO, arXiv 2508.04652). What an agent saw may differ between the samples: the
    baseline is a less exact one than that of equal prompts, but no less fair.

    Raises:
        TrainingError: an action has no joint return.
    """
    joint = []
    for index, action in enumerate(actions):
        if action.joint_return is None:
            raise TrainingError(
                f"action {index} has no joint return, which magrpo needs; leave out actions of "
                "episodes in which a later action is unscored"
            )
        joint.append(replace(action, score=action.joint_return))
    return reinforce(_rescored(joint, _minus_mean), kl_coef=kl_coef, gamma=gamma)


def _returns(actions: Sequence[Action], kl_coef: float, gamma: float) -> list[Tensor]:
    return returns_to_go(
        [action.score for action in actions],
        [action.kl for action in actions],
        kl_coef=kl_coef,
        gamma=gamma,
    )


def _rescored(
    actions: Sequence[Action], rescore: Callable[[Sequence[float]], list[float]]
) -> list[Action]:
    """Replace the scores of each group's actions by what `rescore` makes of them.

    Raises:
        TrainingError: an action is alone in its group, so that there is nothing to compare.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, action in enumerate(actions):
        groups[action.group].append(index)
    rescored = list(actions)
    for group, members in groups.items():
        if len(members) < 2:
            raise TrainingError(
                f"action {members[0]} is alone in its group {group!r}, so that there is nothing to "
                "compare it with; play each task at least twice (train.samples)"
            )
        scores = rescore([actions[index].score for index in members])
        for index, score in zip(members, scores, strict=True):
            rescored[index] = replace(actions[index], score=score)
    return rescored


def _minus_mean(scores: Sequence[float]) -> list[float]:
    mean = fmean(scores)
    return [score - mean for score in scores]


def _minus_others(scores: Sequence[float]) -> list[float]:
    total, others = sum(scores), len(scores) - 1
    return [score - (total - score) / others for score in scores]


def _standardised(scores: Sequence[float]) -> list[float]:
    centred = _minus_mean(scores)
    variance = fmean(score * score for score in centred)
    # With the floor, scores that differ by rounding alone count as equal.
    deviation = math.sqrt(max(variance, VARIANCE_FLOOR))
    return [score / deviation for score in centred]


ADVANTAGES: Mapping[str, Estimator] = {
    "reinforce++": reinforce_plus_plus,
    "reinforce++_baseline": reinforce_plus_plus_baseline,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "magrpo": magrpo,
}


def find(name: str) -> Estimator:
    """Return an estimator by name or by import path `package.module:function`."""
    return lookup.find(name, ADVANTAGES, "advantage estimator")
