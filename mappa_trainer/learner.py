"""One set of trainable weights: a `Likelihood` and the optimiser that changes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.batching import MicroBatch, Pair
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.likelihood import IDLE, Likelihood, Precision
from mappa_trainer.losses import TokenBatch
from mappa_trainer.objective import Objective, StepSize
from mappa_trainer.sharding import ALONE, Ranks, load_tensors, save_tensors, whole, whole_weights
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
        temperature: See `Likelihood`, as `precision`, `token_budget` and `ranks`.
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
        ranks: Ranks = ALONE,
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
        self._ranks = ranks
        self.likelihood = Likelihood(
            model,
            temperature=temperature,
            precision=precision,
            token_budget=token_budget,
            gradient_checkpointing=gradient_checkpointing,
            adapter=adapter,
            ranks=ranks,
        )
        self._offload = offload
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        for parameter in self._parameters:
            self._optimizer.state[parameter] = _no_moments(parameter)
        self.rest()

    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return the log-probabilities of sampled ids; see `Likelihood.logprobs`."""
        return self.likelihood.logprobs(pairs)

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
        self.likelihood.select()
        self._move_moments(self.model.device)
        self._optimizer.zero_grad()
        pairs = [(sample.prompt_ids, sample.token_ids) for sample in samples]
        batches, idle = self.likelihood.share(pairs)
        with self.likelihood.autocast():
            parts = [self._backward(batch, samples, objective, size) for batch in batches]
            for _ in range(idle):
                self._backward_nothing()
        grad_norm = self._clip_gradients()
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
        return self._metrics(parts, size, float(grad_norm))

    def _backward(
        self, batch: MicroBatch, samples: Sequence[Sample], objective: Objective, size: StepSize
    ) -> _Part:
        """Add one micro-batch's share of the gradient."""
        scores = self.likelihood.of(batch, entropy_gradient=objective.entropy_coef > 0)
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

    def _backward_nothing(self) -> None:
        """Add nothing to the gradient, with all exchanges between ranks that adding takes."""
        torch.autograd.backward((self.likelihood.of(IDLE).logprobs * 0).sum())

    def _clip_gradients(self) -> Tensor:
        """Scale the gradient down where it is too long; return its norm before, over all ranks."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm)
        return norm

    def _metrics(self, parts: Sequence[_Part], size: StepSize, grad_norm: float) -> UpdateMetrics:
        """Sum up the micro-batches of all ranks."""
        nothing = torch.zeros(4, dtype=torch.float64, device=self.model.device)
        sums = self._ranks.sum(torch.stack([nothing, *(part.sums() for part in parts)]).sum(0))
        loss, clipped, ratio, entropy = sums.tolist()
        deviations = [(part.ratio - 1).abs().max().double() for part in parts]
        deviation = self._ranks.max(torch.stack([nothing[0], *deviations]).max())
        return UpdateMetrics(
            loss=loss,
            clip_fraction=clipped / size.tokens,
            ratio_mean=ratio / size.tokens,
            ratio_max_deviation=float(deviation),
            entropy=entropy / size.tokens,
            grad_norm=grad_norm,
            tokens=size.tokens,
        )

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

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's moments and the step count; the moments are not copied."""
        moments = {
            f"{name}.{kind}": value if value.ndim else value.reshape(1)
            for name, parameter in zip(self._names, self._parameters, strict=True)
            for kind, value in self._optimizer.state[parameter].items()
        }
        return moments | {"step": torch.tensor([self.step])}

    def save_state(self, folder: Path) -> None:
        """Write `state()`, each rank its part."""
        save_tensors(folder, self.state(), self._ranks)

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote on any number of ranks; weights are not in it.

        Raises:
            ValueError: the state is of another model, or incomplete.
        """
        state = self.state()
        load_tensors(folder, state, self._ranks)
        self.step = int(state["step"])

    def weights(self) -> dict[str, Tensor]:
        """Return all weights on rank 0, on the processor, and nothing on the others."""
        return whole_weights(self.model)

    def save_pretrained(self, directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write weights and tokenizer as a Hugging Face folder, or as one of an adapter."""
        self.likelihood.select()
        state = self.weights() if self._ranks.mesh else None
        if self._ranks.rank == 0:
            self.model.save_pretrained(directory, state_dict=state)
            tokenizer.save_pretrained(directory)


def _no_moments(parameter: Tensor) -> dict[str, Tensor]:
    """Return AdamW's state before its first step, so that a state always has all its names."""
    return {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


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

    def sums(self) -> Tensor:
        """Return the sums over tokens, (4,) float64, in the order of the fields."""
        return torch.stack([column.double().sum() for column in self])
