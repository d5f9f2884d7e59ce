"""Log-probabilities of sampled tokens under one causal language model.

`Likelihood` is the one code path for every pass, the old, the reference's and the new, so that
the three differ by the weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from mappa_trainer.adapters import select
from mappa_trainer.batching import MicroBatch, Pair, micro_batches
from mappa_trainer.errors import ModelError

Precision = Literal["auto", "float32", "bfloat16"]

HEAD_CHUNK = 160
"""Positions whose logits exist at the same time, at 4 bytes · vocabulary each."""


class TokenScores(NamedTuple):
    """What a model says of each of N sampled tokens."""

    logprobs: Tensor
    """(N,), with gradient: of the token itself."""
    entropies: Tensor
    """(N,), with gradient: of the distribution that the token was drawn from, in nats."""


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
        adapter: The LoRA adapter of the model to compute with; None for the model without any.

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
        adapter: str | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0 to train, got {temperature}")
        self.model = model
        self.model.train(False)
        self.temperature = temperature
        self.token_budget = token_budget
        self.adapter = adapter
        self._dtype = autocast_dtype(precision, model.device)
        self.select()
        self._body, self._head = _body_and_head(model)

    @torch.no_grad()
    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return, per pair, the float32 log-probabilities (T,) of its sampled ids.

        The same pairs in the same order are packed the same way as in `Learner.update`.
        """
        self.select()
        results = [torch.empty(0)] * len(pairs)
        with self.autocast():
            for batch in micro_batches(pairs, self.token_budget):
                for row, values in batch.split(self.of(batch).logprobs.cpu()):
                    results[row] = values.clone()
        return results

    def select(self) -> None:
        """Make the model compute with the adapter; several likelihoods may share one model."""
        select(self.model, self.adapter)

    def of(self, batch: MicroBatch) -> TokenScores:
        """Return the log-probabilities of a micro-batch's targets and the entropies there."""
        device = self.model.device
        hidden = self._body(input_ids=batch.input_ids.to(device), use_cache=False)[0]
        hidden = hidden.flatten(0, 1).index_select(0, batch.positions.to(device))
        chunks = zip(
            torch.split(hidden, HEAD_CHUNK),
            torch.split(batch.targets.to(device), HEAD_CHUNK),
            strict=True,
        )
        parts = [checkpoint(self._token_scores, *c, use_reentrant=False) for c in chunks]
        return TokenScores(*map(torch.cat, zip(*parts, strict=True)))

    def autocast(self) -> torch.autocast:
        """Return the context that every pass runs in; inside one, weights are cast once."""
        enabled = self._dtype != torch.float32
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _token_scores(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self._head(hidden).float() / self.temperature
        every = logits.log_softmax(-1)
        entropies = -(every.exp() * every).sum(-1)
        return every.gather(1, targets[:, None]).squeeze(1), entropies


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
