"""What an optimiser step minimises: a loss, what is added to it, and how tokens are averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mappa_trainer import kl
from mappa_trainer.errors import TrainingError
from mappa_trainer.losses import TokenBatch, TokenLoss

Aggregation = Literal["token_mean", "seq_mean", "token_sum"]

StepLoss = Callable[[TokenBatch], TokenLoss]
"""A loss with its settings bound, for instance by `functools.partial`."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """How many tokens and actions a whole optimiser step has, over all its micro-batches."""

    tokens: int
    actions: int


@dataclass(frozen=True, slots=True)
class Objective:
    """The settings of an optimiser step; as they are, the token mean of a loss and nothing else."""

    loss: StepLoss
    aggregation: Aggregation = "token_mean"
    divisor: float = 1.0
    """Of `token_sum`."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference in the loss."""
    kl_estimator: kl.KLName = "k2"
    entropy_coef: float = 0.0
    importance_cap: float | None = None

    def token_losses(
        self, tokens: TokenBatch, entropies: Tensor, ref: Tensor | None, sampler: Tensor | None
    ) -> TokenLoss:
        """Return the loss of each of N tokens, before any averaging.

            min(pi_old / pi_sampler, importance_cap) · loss + kl_coef · KL - entropy_coef · entropy

        Args:
            tokens: See `TokenBatch`.
            entropies: (N,), with gradient where `entropy_coef` is above 0.
            ref: (N,) log-probabilities of the reference; needed where `kl_coef` is above 0.
            sampler: (N,) those of the engine; needed where there is an `importance_cap`.

        Raises:
            TrainingError: the loss does not have one value for each token.
        """
        loss, clipped = self._checked_loss(tokens)
        if self.importance_cap is not None:
            assert sampler is not None
            loss = loss * importance_weights(tokens.old_logprobs, sampler, self.importance_cap)
        if self.kl_coef:
            assert ref is not None
            loss = loss + self.kl_coef * kl.ESTIMATORS[self.kl_estimator](tokens.logprobs, ref)
        if self.entropy_coef:
            loss = loss - self.entropy_coef * entropies
        return TokenLoss(loss, clipped)

    def _checked_loss(self, tokens: TokenBatch) -> TokenLoss:
        try:
            found = self.loss(tokens)
        except TrainingError:
            raise
        except Exception as error:  # whatever a function of the user's raises
            raise TrainingError(
                f"the loss failed: {type(error).__name__}: {error}; it takes (tokens, *, clip_low, "
                "clip_high) and returns a TokenLoss"
            ) from error
        if not isinstance(found, TokenLoss):
            raise TrainingError(
                f"the loss returned a {type(found).__name__}; it must return a TokenLoss, with one "
                "value of the loss and one of whether it was clipped for each token"
            )
        _check_shapes(tokens, *found)
        if tokens.logprobs.requires_grad and not found.loss.requires_grad:
            raise TrainingError(
                "the loss has no gradient; compute it from tokens.logprobs, without detach"
            )
        return found

    def weights(self, lengths: Tensor, size: StepSize) -> Tensor:
        """Return the weight of each token of a micro-batch in the loss of its optimiser step.

        The weights of a step do not depend on how it is cut into micro-batches: `token_mean` gives
        1/N of its N tokens, `seq_mean` 1/S of its S actions, shared out among the action's tokens,
        and `token_sum` 1/divisor.

        Args:
            lengths: int64, the tokens of each action of the micro-batch.
            size: Of the whole step.
        """
        if self.aggregation == "seq_mean":
            shares = 1.0 / (lengths * size.actions)
        else:
            whole = size.tokens if self.aggregation == "token_mean" else self.divisor
            shares = torch.full(lengths.shape, 1.0 / whole, device=lengths.device)
        return shares.float().repeat_interleave(lengths)


def _check_shapes(tokens: TokenBatch, loss: Tensor, clipped: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in (tokens.logprobs, loss, clipped)]
    if len(set(shapes)) > 1:
        raise TrainingError(
            f"for log-probabilities of shape {shapes[0]} the loss has shape {shapes[1]} and its "
            f"clipped tokens {shapes[2]}; a loss must return one value of both for each token, "
            "and must not average them"
        )


def importance_weights(old: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Return min(pi_old / pi_sampler, cap), (N,), without gradient: truncated importance sampling.

    It corrects for an engine whose probabilities are not quite the learner's.
    """
    return (old - sampler).detach().exp().clamp(max=cap)
