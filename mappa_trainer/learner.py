"""One set of trainable weights: a `Likelihood` and the optimiser that changes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.batching import MicroBatch, Pair, micro_batches
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.likelihood import Likelihood, Precision
from mappa_trainer.losses import TokenBatch
from mappa_trainer.objective import Objective, StepSize
from mappa_trainer.types import Sample, UpdateMetrics

FINAL_SHARE = 0.1
"""Of the peak learning rate, at the end of a cosine schedule."""

Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The learning rate of every optimiser step of a run."""

    peak: float = 1e-6
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    total_steps: int = 1
    """Optimiser steps of the whole run; the last one has a tenth of the peak under `cosine`."""

    def at(self, step: int) -> float:
        """Rise linearly to the peak over the warmup, then stay, or fall along a half cosine.

        `step` counts from 0, and step 0 already has a rate above 0: `peak / warmup_steps`.
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.peak
        length = self.total_steps - 1 - self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / length) if length > 0 else 1.0
        falling = (1 + math.cos(math.pi * progress)) / 2
        return self.peak * (FINAL_SHARE + (1 - FINAL_SHARE) * falling)


class Learner:
    """A trainable causal language model in float32, with AdamW (betas 0.9, 0.95, no decay).

    Args:
        model: The weights to train, in float32; parameters that do not require a gradient stay.
        gradient_checkpointing: See `Likelihood`.
        adapter: The LoRA adapter to train; None trains the model itself.
        offload: Whether `rest` moves the optimiser's moments to the processor's memory.
        learning_rate: Of every optimiser step.
        max_grad_norm: The gradient is scaled down to this norm when it is longer.
        temperature: See `Likelihood`, as `precision` and `token_budget`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        learning_rate: LearningRate = LearningRate(),
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        precision: Precision = "auto",
        token_budget: int = 4096,
        gradient_checkpointing: bool = False,
        adapter: str | None = None,
        offload: bool = False,
    ) -> None:
        if model.dtype != torch.float32:
            raise ModelError(
                f"the model to train has dtype {model.dtype}; load it in float32, because small "
                "updates are lost to rounding in anything less"
            )
        self.model = model
        self.step = 0
        """The position in the schedule: optimiser steps taken or skipped so far."""
        self._learning_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._likelihood = Likelihood(
            model,
            temperature=temperature,
            precision=precision,
            token_budget=token_budget,
            gradient_checkpointing=gradient_checkpointing,
            adapter=adapter,
        )
        self._offload = offload
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return the log-probabilities of sampled ids; see `Likelihood.logprobs`."""
        return self._likelihood.logprobs(pairs)

    def update(self, samples: Sequence[Sample], objective: Objective) -> UpdateMetrics:
        """Take one optimiser step on all samples together.

        The step is the same however the samples fall into micro-batches. Without a single token the
        weights stay as they are, the schedule goes on, and the metrics are those of an
        unchanged policy.

        Args:
            samples: One mini-batch. The ratio is exactly 1 when their `old_logprobs` came from
                `logprobs` on these samples, in this order, with the current weights.
            objective: For instance `Objective(functools.partial(ppo_clip, clip_low=0.2,
                clip_high=0.28))`.

        Raises:
            TrainingError: The gradient is not finite; the weights are left as they were.
        """
        for row, sample in enumerate(samples):
            _check_lengths(row, sample)
        lengths = [len(sample.token_ids) for sample in samples]
        size = StepSize(tokens=sum(lengths), actions=sum(map(bool, lengths)))
        if not size.tokens:
            self.step += 1
            return UpdateMetrics(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0)
        self._likelihood.select()
        self._move_moments(self.model.device)
        self._optimizer.zero_grad()
        pairs = [(sample.prompt_ids, sample.token_ids) for sample in samples]
        with self._likelihood.autocast():
            parts = [
                self._backward(batch, samples, objective, size)
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
            group["lr"] = self._learning_rate.at(self.step)
        self._optimizer.step()
        self.step += 1
        return _metrics(parts, float(grad_norm))

    def _backward(
        self, batch: MicroBatch, samples: Sequence[Sample], objective: Objective, size: StepSize
    ) -> _Part:
        """Add one micro-batch's share of the gradient."""
        scores = self._likelihood.of(batch, entropy_gradient=objective.entropy_coef > 0)
        device = scores.logprobs.device
        rows = [samples[row] for row in batch.rows]
        lengths = torch.tensor(batch.lengths, device=device)
        tokens = TokenBatch(
            logprobs=scores.logprobs,
            old_logprobs=torch.cat([sample.old_logprobs for sample in rows]).to(device),
            advantages=torch.cat([sample.advantages for sample in rows]).to(device),
            sequence=torch.arange(len(rows), device=device).repeat_interleave(lengths),
        )
        ref, sampler = (
            _joined([getattr(sample, name) for sample in rows], device)
            for name in ("ref_logprobs", "sampler_logprobs")
        )
        losses = objective.token_losses(tokens, scores.entropies, ref, sampler)
        loss = (losses.loss * objective.weights(lengths, size)).sum()
        torch.autograd.backward(loss)
        ratio = (scores.logprobs.detach() - tokens.old_logprobs).exp()
        return _Part(loss.detach(), losses.clipped, ratio, scores.entropies.detach())

    def rest(self) -> None:
        """Give back memory for other weights to train in: gradients, and moments if so asked."""
        self._optimizer.zero_grad()
        if self._offload:
            self._move_moments(torch.device("cpu"))

    def _move_moments(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim:  # step counts stay where they are
                    state[name] = value.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser state and step count, of types `torch.load(weights_only=True)` takes."""
        return {"optimizer": self._optimizer.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; the weights are loaded with the model."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])

    def save_pretrained(self, directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write weights and tokenizer as a Hugging Face folder, or as one of an adapter."""
        self._likelihood.select()
        self.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _check_lengths(row: int, sample: Sample) -> None:
    count, old, advantages = map(len, (sample.token_ids, sample.old_logprobs, sample.advantages))
    if not count == old == advantages:
        raise TrainingError(
            f"sample {row} has {count} tokens but {old} old log-probabilities and {advantages} "
            "advantages; give one of each per sampled token"
        )


def _joined(values: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    """Join what all samples have; None where one has nothing."""
    given = [value for value in values if value is not None]
    return torch.cat(given).to(device) if len(given) == len(values) else None


class _Part(NamedTuple):
    """What one micro-batch of N tokens adds to the metrics of its step."""

    loss: Tensor
    clipped: Tensor
    """(N,), as the two below."""
    ratio: Tensor
    entropies: Tensor


def _metrics(parts: Sequence[_Part], grad_norm: float) -> UpdateMetrics:
    clipped, ratio, entropies = (
        torch.cat([part[column] for part in parts]) for column in range(1, len(_Part._fields))
    )
    return UpdateMetrics(
        loss=float(sum(part.loss for part in parts)),
        clip_fraction=float(clipped.float().mean()),
        ratio_mean=float(ratio.mean()),
        ratio_max_deviation=float((ratio - 1).abs().max()),
        entropy=float(entropies.mean()),
        grad_norm=grad_norm,
        tokens=ratio.numel(),
    )
