"""Two other ways to take a GRPO step: what one would write first, and TRL's trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from actions import RATE, adamw, share_weights
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from mappa_trainer.batching import Pair

AT_ONCE = 4
"""Rows of a micro-batch."""
CLIP, KL_COEF = 0.2, 0.04


@dataclass(frozen=True, slots=True)
class Padded:
    """B actions after prompts of P tokens each, filled up to the longest of T tokens."""

    prompts: Tensor
    """(B, P) int64"""
    actions: Tensor
    """(B, T) int64"""
    mask: Tensor
    """(B, T) int64: 1 where there is a token."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Padded:
        """Pad pairs whose prompts are of one length."""
        actions = [torch.tensor(sampled) for _, sampled in pairs]
        return cls(
            torch.tensor([prompt for prompt, _ in pairs]),
            fill(actions),
            fill([torch.ones_like(action) for action in actions]),
        )

    def micro_batches(self) -> list[Padded]:
        """Cut it by rows."""
        columns = (t.split(AT_ONCE) for t in (self.prompts, self.actions, self.mask))
        return [Padded(*part) for part in zip(*columns, strict=True)]


def fill(rows: Sequence[Tensor]) -> Tensor:
    """Fill rows up with zeros to the longest: (B, T)."""
    longest = max(map(len, rows))
    return torch.stack([pad(row, (0, longest - len(row))) for row in rows])


class Peer(Protocol):
    """Takes the same step in another way; log-probabilities are (B, T), advantages (B,)."""

    model: PreTrainedModel

    def policy(self) -> Tensor:
        """Return the log-probabilities of the weights as they are."""

    def reference(self) -> Tensor:
        """Return those of the reference."""

    def step(self, old: Tensor, ref: Tensor, advantages: Tensor) -> None:
        """Take an optimiser step."""


class Naive:
    """Rows padded to the longest, logits of all positions, one loop over micro-batches."""

    def __init__(
        self, folder: Path, owner: PreTrainedModel, reference: PreTrainedModel, padded: Padded
    ) -> None:
        self.model, self._reference = _sharing(folder, owner), _sharing(folder, reference)
        self._padded = padded
        self._optimizer = adamw(self.model)

    def policy(self) -> Tensor:
        """Return the log-probabilities of the weights as they are."""
        return self._logprobs(self.model)

    def reference(self) -> Tensor:
        """Return those of the reference."""
        return self._logprobs(self._reference)

    def step(self, old: Tensor, ref: Tensor, advantages: Tensor) -> None:
        """Minimise the token mean of PPO's clipped loss and the k3 estimate of the KL."""
        self._optimizer.zero_grad()
        constants = zip(*(t.split(AT_ONCE) for t in (old, ref, advantages)), strict=True)
        count = self._padded.mask.sum()
        for part, (own_old, own_ref, scale) in zip(
            self._padded.micro_batches(), constants, strict=True
        ):
            new = _all_logits(self.model, part)
            ratio = (new - own_old).exp()
            bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
            gain = torch.min(ratio * scale[:, None], bounded * scale[:, None])
            kl = (own_ref - new).exp() - (own_ref - new) - 1
            torch.autograd.backward(((KL_COEF * kl - gain) * part.mask).sum() / count)
        self._optimizer.step()

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel) -> Tensor:
        return torch.cat([_all_logits(model, part) for part in self._padded.micro_batches()])


class PreparedTrainer(GRPOTrainer):
    """TRL's trainer, given batches that are prepared already instead of generating them."""

    def _prepare_inputs(self, generation_batch: dict[str, Any]) -> dict[str, Any]:
        return generation_batch


class TRL:
    """The passes, the training step and the optimiser of TRL's `GRPOTrainer`."""

    def __init__(
        self, folder: Path, owner: PreTrainedModel, reference: PreTrainedModel, padded: Padded
    ) -> None:
        self._padded = padded
        self._trainer = PreparedTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_dict({"prompt": ["not read"]}),
            args=GRPOConfig(
                output_dir=tempfile.gettempdir(),
                per_device_train_batch_size=AT_ONCE,
                gradient_accumulation_steps=len(padded.micro_batches()),
                num_generations=8,
                loss_type="dapo",  # the token mean
                beta=KL_COEF,
                use_bias_correction_kl=False,  # as the plain loop and ours
                epsilon=CLIP,
                learning_rate=RATE,
                adam_beta2=0.95,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                use_cpu=True,
            ),
        )
        self.model = self._trainer.model
        share_weights(self.model, owner)
        share_weights(self._trainer.ref_model, reference)
        self._trainer.create_optimizer()
        self._trainer.current_gradient_accumulation_steps = len(padded.micro_batches())

    def policy(self) -> Tensor:
        """Return the log-probabilities of the weights as they are."""
        return self._logprobs(self.model)

    def reference(self) -> Tensor:
        """Return those of the reference."""
        return self._logprobs(self._trainer.ref_model)

    def step(self, old: Tensor, ref: Tensor, advantages: Tensor) -> None:
        """Let the trainer accumulate the gradient, and its optimiser step."""
        self._trainer.optimizer.zero_grad()
        constants = zip(*(t.split(AT_ONCE) for t in (old, ref, advantages)), strict=True)
        count = self._padded.mask.sum()
        for part, (own_old, own_ref, scale) in zip(
            self._padded.micro_batches(), constants, strict=True
        ):
            inputs = {
                "prompt_ids": part.prompts,
                "prompt_mask": torch.ones_like(part.prompts),
                "completion_ids": part.actions,
                "completion_mask": part.mask,
                "advantages": scale,
                "old_per_token_logps": own_old,
                "ref_per_token_logps": own_ref,
                "num_items_in_batch": count,
            }
            self._trainer.training_step(self.model, inputs, count)
        self._trainer.optimizer.step()

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel) -> Tensor:
        padded = self._padded
        found, *_ = self._trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([padded.prompts, padded.actions], dim=1),
            torch.cat([torch.ones_like(padded.prompts), padded.mask], dim=1),
            padded.actions.shape[1],
            batch_size=AT_ONCE,
        )
        return found


def _sharing(folder: Path, owner: PreTrainedModel) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    share_weights(model, owner)
    return model


def _all_logits(model: PreTrainedModel, part: Padded) -> Tensor:
    """Return the log-probabilities (B, T) of the actions."""
    mask = torch.cat([torch.ones_like(part.prompts), part.mask], dim=1)
    whole = torch.cat([part.prompts, part.actions], dim=1)
    logits = model(input_ids=whole, attention_mask=mask, use_cache=False).logits
    every = logits[:, part.prompts.shape[1] - 1 : -1].log_softmax(-1)
    return every.gather(2, part.actions[:, :, None]).squeeze(2)


PEERS: dict[str, type[Naive] | type[TRL]] = {"padded, all logits": Naive, "TRL 1.16": TRL}
