"""From the scores of actions to returns of their tokens, and whitening: the maths of REINFORCE++.

For one action with sampled tokens t = 1..T, score r, and an estimate `kl_t` of the KL divergence
from the reference (arXiv 2501.03262):

    R_t  = -kl_coef · kl_t + [t = T] · r
    G_t  = R_t + gamma · G_{t+1}

Actions are ragged lists of 1-D tensors, never padded. Where a sequence interleaves tokens that
the policy did not sample (tool output), boolean masks single out the policy tokens: the others
have no KL, earn nothing, take no step of discount, and their return is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mappa_trainer.errors import TrainingError

VARIANCE_FLOOR = 1e-8
"""Keeps whitening finite when all returns are equal; equal returns then whiten to 0."""


def returns_to_go(
    scores: Sequence[float],
    kls: Sequence[Tensor],
    *,
    kl_coef: float,
    gamma: float = 1.0,
    masks: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Sum each token's discounted rewards to the end of its own action.

    Args:
        scores: One per action; paid on the action's last policy token.
        kls: Per action, (T,) estimates of the KL to the reference.
        kl_coef: Weight of the KL in the reward.
        gamma: Discount per policy token.
        masks: Per action, (T,) bool, True on policy tokens; all of them when None.

    Returns:
        Per action, (T,) float64; 0 where the mask is False.

    Raises:
        TrainingError: A score or the KL of a policy token is not finite, or an action has no
            policy token to pay its score on.
    """
    return [
        _action_return(index, score, kl, mask, kl_coef, gamma)
        for index, (score, kl, mask) in enumerate(
            zip(scores, kls, _all_true(kls) if masks is None else masks, strict=True)
        )
    ]


def _action_return(
    index: int, score: float, kl: Tensor, mask: Tensor, kl_coef: float, gamma: float
) -> Tensor:
    if kl.ndim != 1 or mask.shape != kl.shape:
        raise TrainingError(
            f"action {index}: KL and mask must be vectors of one length, got shapes "
            f"{tuple(kl.shape)} and {tuple(mask.shape)}"
        )
    rewards = [-kl_coef * value for value in kl[mask].tolist()]
    if not rewards:
        raise TrainingError(
            f"action {index} has no policy token to pay its score {score} on; "
            "leave out actions in which nothing was sampled"
        )
    rewards[-1] += score
    if not all(map(math.isfinite, rewards)):
        raise TrainingError(
            f"action {index}: score {score} and KL {kl[mask].tolist()} must be finite; "
            "leave out unscored actions, and check the log-probabilities of both models"
        )
    total = 0.0
    for position in reversed(range(len(rewards))):
        total = rewards[position] + gamma * total
        rewards[position] = total
    returns = torch.zeros(kl.shape, dtype=torch.float64)
    returns[mask.cpu()] = torch.tensor(rewards, dtype=torch.float64)
    return returns


def whiten(values: Sequence[Tensor], masks: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Shift and scale to mean 0 and variance 1 over all tokens of all actions together.

    The variance is the population's (divided by N) and at least 1e-8. Long actions weigh more
    than short ones: the unit is the token.

    Args:
        values: Per action, (T,).
        masks: Per action, (T,) bool; where False, a value is not counted and becomes 0.

    Returns:
        Per action, (T,) float32.

    Raises:
        TrainingError: A counted value is not finite.
    """
    if not values:
        return []
    masks = _all_true(values) if masks is None else masks
    counted = torch.cat([v[m] for v, m in zip(values, masks, strict=True)]).double()
    if not counted.numel():
        return [torch.zeros_like(value, dtype=torch.float32) for value in values]
    if not counted.isfinite().all():
        raise TrainingError(
            f"{int((~counted.isfinite()).sum())} of {counted.numel()} values to whiten are not "
            "finite; check the scores and log-probabilities they come from"
        )
    mean = counted.mean()
    scale = counted.var(correction=0).clamp(min=VARIANCE_FLOOR).rsqrt()
    return [
        torch.where(mask, (value - mean) * scale, 0.0).float()
        for value, mask in zip(values, masks, strict=True)
    ]


def _all_true(values: Sequence[Tensor]) -> list[Tensor]:
    return [torch.ones_like(value, dtype=torch.bool) for value in values]
