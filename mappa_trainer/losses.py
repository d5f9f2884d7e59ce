"""Losses per token; what is added to them and how they are averaged is in `objective`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mappa_trainer import lookup


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The N tokens of some whole actions, as a loss sees them; every tensor is (N,)."""

    logprobs: Tensor
    """With gradient."""
    old_logprobs: Tensor
    """From before the first update."""
    advantages: Tensor
    sequence: Tensor
    """int64: which action a token belongs to, counted from 0."""

    def __post_init__(self) -> None:
        shapes = {
            name: tuple(getattr(self, name).shape)
            for name in ("logprobs", "old_logprobs", "advantages", "sequence")
        }
        if len(set(shapes.values())) > 1:
            raise ValueError(f"the tensors of a TokenBatch must have one shape, got {shapes}")


class TokenLoss(NamedTuple):
    """What a loss says about each of N tokens."""

    loss: Tensor
    """(N,), with gradient."""
    clipped: Tensor
    """(N,) bool: the clip cut the token's gradient off."""


LossFunction = Callable[..., TokenLoss]
"""`(tokens, *, clip_low, clip_high) -> TokenLoss`, as `ppo_clip`."""


def ppo_clip(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> TokenLoss:
    """Clip the policy ratio as PPO does (arXiv 1707.06347, eq. 7), token by token.

        ratio = exp(logprobs - old_logprobs)
        loss  = -min(ratio · A, clip(ratio, 1 - clip_low, 1 + clip_high) · A)

    Args:
        tokens: See `TokenBatch`.
        clip_low: How far below 1 a ratio still has a gradient when its advantage is negative.
        clip_high: How far above 1 a ratio still has a gradient when its advantage is positive.
    """
    return _clip(tokens.logprobs - tokens.old_logprobs, tokens.advantages, clip_low, clip_high)


def gspo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> TokenLoss:
    """Clip the ratio of whole actions (GSPO, arXiv 2507.18071, eq. 5 and its token form, eq. 14).

        ratio = exp(mean over the action's tokens of logprobs - old_logprobs)

    A token's gradient is that of its own log-probability times the action's ratio. The paper's clip
    is far narrower than PPO's (3e-4 and 4e-4), and its aggregation is `seq_mean`.

    Args:
        tokens: Whole actions; see `TokenBatch`.
        clip_low: As in `ppo_clip`.
        clip_high: As in `ppo_clip`.
    """
    with torch.no_grad():
        mean = _mean_by(tokens.sequence, tokens.logprobs - tokens.old_logprobs)
    log_ratio = mean + tokens.logprobs - tokens.logprobs.detach()
    return _clip(log_ratio, tokens.advantages, clip_low, clip_high)


def _clip(log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> TokenLoss:
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = bounded * advantages < ratio * advantages
    # An overflowing ratio that the clip discards must not reach exp, whose gradient would be NaN.
    kept = torch.where(clipped, 0.0, log_ratio).exp()
    return TokenLoss(-torch.where(clipped, bounded, kept) * advantages, clipped)


def _mean_by(sequence: Tensor, values: Tensor) -> Tensor:
    """Replace each of N values by the mean of those of its sequence."""
    sums = values.new_zeros(int(sequence.max()) + 1 if len(sequence) else 0)
    means = sums.index_add(0, sequence, values) / sequence.bincount().clamp(min=1)
    return means[sequence]


LOSSES: Mapping[str, LossFunction] = {"ppo_clip": ppo_clip, "gspo": gspo}


def find(name: str) -> LossFunction:
    """Return a loss by name or by import path `package.module:function`."""
    return lookup.find(name, LOSSES, "loss")
