"""Losses per token; the learner averages them over all policy tokens of the optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mappa_trainer import lookup


class TokenLoss(NamedTuple):
    """What a loss says about each of N tokens."""

    loss: Tensor
    """(N,), with gradient."""
    clipped: Tensor
    """(N,) bool: the clip cut the token's gradient off."""


LossFunction = Callable[..., TokenLoss]
"""`(logprobs, old_logprobs, advantages, *, clip_low, clip_high) -> TokenLoss`, as `ppo_clip`."""


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> TokenLoss:
    """Clip the policy ratio as PPO does (arXiv 1707.06347, eq. 7), token by token.

        ratio = exp(logprobs - old_logprobs)
        loss  = -min(ratio · A, clip(ratio, 1 - clip_low, 1 + clip_high) · A)

    Args:
        logprobs: (N,), with gradient.
        old_logprobs: (N,), from before the first update.
        advantages: (N,)
        clip_low: How far below 1 a ratio still has a gradient when its advantage is negative.
        clip_high: How far above 1 a ratio still has a gradient when its advantage is positive.
    """
    if not logprobs.shape == old_logprobs.shape == advantages.shape:
        raise ValueError(
            f"ppo_clip needs three tensors of one shape, got logprobs {tuple(logprobs.shape)}, "
            f"old_logprobs {tuple(old_logprobs.shape)}, advantages {tuple(advantages.shape)}"
        )
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = bounded * advantages < ratio * advantages
    # An overflowing ratio that the clip discards must not reach exp, whose gradient would be NaN.
    kept = torch.where(clipped, 0.0, log_ratio).exp()
    return TokenLoss(-torch.where(clipped, bounded, kept) * advantages, clipped)


LOSSES: Mapping[str, LossFunction] = {"ppo_clip": ppo_clip}


def find(name: str) -> LossFunction:
    """Return a loss by name or by import path `package.module:function`."""
    return lookup.find(name, LOSSES, "loss")
