"""One set of trainable weights: log-probabilities of sampled tokens, and optimiser steps on them.

`Likelihood` is the one code path for every pass, the old, the reference's and the new, so that
the three differ by the weights alone. `Learner` adds the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.batching import MicroBatch, Pair, micro_batches
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.losses import TokenLoss
from mappa_trainer.types import Sample, UpdateMetrics

Precision = Literal["auto", "float32", "bfloat16"]

HEAD_CHUNK = 160
"""Positions whose logits exist at the same time, at 4 bytes · vocabulary each."""

StepLoss = Callable[[Tensor, Tensor, Tensor], TokenLoss]
"""A loss with its settings bound: `(logprobs, old_logprobs, advantages)`, each (N,)."""


def learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """Rise linearly to `peak` over `warmup_steps` optimiser steps, then stay.

    `step` counts from 0, and step 0 already has a rate above 0: `peak / warmup_steps`.
    """
    return peak * min(1.0, (step + 1) / max(1, warmup_steps))


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; `auto` is bfloat16 where the hardware has it."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float32
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities()
        fast = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if fast else torch.float32


class Likelihood:
    """Log-probabilities of sampled tokens under one causal language model.

    The decoder body runs once per micro-batch; the output head sees only the positions that
    predict sampled tokens, chunk by chunk, so the (B, L, V) logits never exist. Frozen models
    (a reference) are used through `logprobs` alone.

    Args:
        model: A causal language model. It is put in evaluation mode: dropout would make two
            passes over the same weights differ.
        temperature: Divides the logits, as it did when the tokens were sampled.
        precision: Of the matrix products; sums, logits and the softmax are float32.
        token_budget: The most positions, padding included, in one micro-batch.

    Raises:
        ModelError: The architecture does more to its logits than body and head.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        precision: Precision = "auto",
        token_budget: int = 4096,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0 to train, got {temperature}")
        self.model = model
        self.model.train(False)
        self.temperature = temperature
        self.token_budget = token_budget
        self._dtype = autocast_dtype(precision, model.device)
        self._body, self._head = _body_and_head(model)

    @torch.no_grad()
    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return, per pair, the float32 log-probabilities (T,) of its sampled ids.

        The same pairs in the same order are packed the same way as in `Learner.update`.
        """
        results = [torch.empty(0)] * len(pairs)
        with self.autocast():
            for batch in micro_batches(pairs, self.token_budget):
                for row, values in batch.split(self.of(batch).cpu()):
                    results[row] = values.clone()
        return results

    def of(self, batch: MicroBatch) -> Tensor:
        """Return the log-probabilities (N,) of a micro-batch's targets, with gradient."""
        device = self.model.device
        hidden = self._body(input_ids=batch.input_ids.to(device), use_cache=False)[0]
        hidden = hidden.flatten(0, 1).index_select(0, batch.positions.to(device))
        chunks = zip(
            torch.split(hidden, HEAD_CHUNK),
            torch.split(batch.targets.to(device), HEAD_CHUNK),
            strict=True,
        )
        return torch.cat(
            [checkpoint(self._token_logprobs, *c, use_reentrant=False) for c in chunks]
        )

    def autocast(self) -> torch.autocast:
        """Return the context that every pass runs in; inside one, weights are cast once."""
        enabled = self._dtype != torch.float32
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _token_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden).float() / self.temperature
        return -cross_entropy(logits, targets, reduction="none")


@torch.no_grad()
def _body_and_head(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Take a model apart, and compare the parts with the whole on a few ids."""
    body: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    vocabulary = model.config.get_text_config().vocab_size
    probe = torch.arange(1, 9, device=model.device)[None] % vocabulary
    whole = model(input_ids=probe, use_cache=False).logits.float()
    parts = head(body(input_ids=probe, use_cache=False)[0]).float()
    gap = float((parts - whole).abs().max())
    if gap > 1e-3 * float(whole.abs().max()):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output head (by up to {gap:.3g} "
            "on a probe), for instance by a soft cap or a scale, which training would miss; "
            "use an architecture without it"
        )
    return body, head


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
        logprobs = self._likelihood.of(batch)
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
