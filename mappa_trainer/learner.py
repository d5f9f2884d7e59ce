"""One set of trainable weights: a `Likelihood` and the optimiser that changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.batching import MicroBatch, Pair, micro_batches
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.likelihood import Likelihood, Precision
from mappa_trainer.losses import TokenLoss
from mappa_trainer.types import Sample, UpdateMetrics

StepLoss = Callable[[Tensor, Tensor, Tensor], TokenLoss]
"""A loss with its settings bound: `(logprobs, old_logprobs, advantages)`, each (N,)."""


def learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """Rise linearly to `peak` over `warmup_steps` optimiser steps, then stay.

    `step` counts from 0, and step 0 already has a rate above 0: `peak / warmup_steps`.
    """
    return peak * min(1.0, (step + 1) / max(1, warmup_steps))


class Learner:
    """A trainable causal language model in float32, with AdamW (betas 0.9, 0.95, no decay).

    Args:
        model: The weights to train, in float32; parameters that do not require a gradient stay.
        peak_learning_rate: Reached after `warmup_steps` optimiser steps; see `learning_rate`.
        warmup_steps: Optimiser steps of linear warmup.
        max_grad_norm: The gradient is scaled down to this norm when it is longer.
        temperature: See `Likelihood`, as `precision` and `token_budget`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        peak_learning_rate: float = 1e-6,
        warmup_steps: int = 0,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        precision: Precision = "auto",
        token_budget: int = 4096,
    ) -> None:
        if model.dtype != torch.float32:
            raise ModelError(
                f"the model to train has dtype {model.dtype}; load it in float32, because small "
                "updates are lost to rounding in anything less"
            )
        self.model = model
        self.step = 0
        self._peak_learning_rate = peak_learning_rate
        self._warmup_steps = warmup_steps
        self._max_grad_norm = max_grad_norm
        self._likelihood = Likelihood(
            model, temperature=temperature, precision=precision, token_budget=token_budget
        )
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return the log-probabilities of sampled ids; see `Likelihood.logprobs`."""
        return self._likelihood.logprobs(pairs)

    def update(self, samples: Sequence[Sample], loss: StepLoss) -> UpdateMetrics:
        """Take one optimiser step on the mean of the loss over all sampled tokens.

        The step is the same however the samples fall into micro-batches. Without a single token
        no step is taken, and the metrics are those of an unchanged policy.

        Args:
            samples: One mini-batch. The ratio is exactly 1 when their `old_logprobs` came from
                `logprobs` on these samples, in this order, with the current weights.
            loss: For instance `functools.partial(ppo_clip, clip_high=0.28)`.

        Raises:
            TrainingError: The gradient is not finite; the weights are left as they were.
        """
        tokens = sum(len(sample.token_ids) for sample in samples)
        if not tokens:
            return UpdateMetrics(0.0, 0.0, 1.0, 0.0, 0.0, 0)
        for row, sample in enumerate(samples):
            _check_lengths(row, sample)
        self._optimizer.zero_grad()
        pairs = [(sample.prompt_ids, sample.token_ids) for sample in samples]
        with self._likelihood.autocast():
            parts = [
                self._backward(batch, samples, loss, tokens)
                for batch in micro_batches(pairs, self._likelihood.token_budget)
            ]
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        if not grad_norm.isfinite():
            self._optimizer.zero_grad()
            raise TrainingError(
                f"optimiser step {self.step}: the gradient norm is {float(grad_norm)} on "
                f"{len(samples)} samples; check their advantages and log-probabilities"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self._peak_learning_rate, self._warmup_steps)
        self._optimizer.step()
        self.step += 1
        return _metrics(parts, float(grad_norm))

    def _backward(
        self, batch: MicroBatch, samples: Sequence[Sample], loss: StepLoss, tokens: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add one micro-batch's share of the gradient; return loss, clip and ratio, each (N,)."""
        logprobs = self._likelihood.of(batch).logprobs
        old, advantages = (
            torch.cat(values).to(logprobs.device)
            for values in (
                [samples[row].old_logprobs for row in batch.rows],
                [samples[row].advantages for row in batch.rows],
            )
        )
        result = loss(logprobs, old, advantages)
        torch.autograd.backward(result.loss.sum() / tokens)
        ratio = (logprobs.detach() - old).exp()
        return result.loss.detach(), result.clipped, ratio

    def free_gradients(self) -> None:
        """Give back the memory of the last step's gradients, for other agents to learn in."""
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser state and step count, of types `torch.load(weights_only=True)` takes."""
        return {"optimizer": self._optimizer.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; the weights are loaded with the model."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])

    def save_pretrained(self, directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write weights and tokenizer as a Hugging Face folder."""
        self.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _check_lengths(row: int, sample: Sample) -> None:
    count, old, advantages = map(len, (sample.token_ids, sample.old_logprobs, sample.advantages))
    if not count == old == advantages:
        raise TrainingError(
            f"sample {row} has {count} tokens but {old} old log-probabilities and {advantages} "
            "advantages; give one of each per sampled token"
        )


def _metrics(parts: Sequence[tuple[Tensor, Tensor, Tensor]], grad_norm: float) -> UpdateMetrics:
    loss, clipped, ratio = (torch.cat(column) for column in zip(*parts, strict=True))
    return UpdateMetrics(
        loss=float(loss.mean()),
        clip_fraction=float(clipped.float().mean()),
        ratio_mean=float(ratio.mean()),
        ratio_max_deviation=float((ratio - 1).abs().max()),
        grad_norm=grad_norm,
        tokens=loss.numel(),
    )
