"""Log-probabilities of sampled tokens under one causal language model.

`Likelihood` is the one code path for every pass, the old, the reference's and the new, so that
the three differ by the weights alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from mappa_trainer.adapters import select
from mappa_trainer.batching import MicroBatch, Pair, micro_batches
from mappa_trainer.errors import ModelError
from mappa_trainer.packing import MIN_SHARED, PackedRow, pack
from mappa_trainer.sharding import ALONE, Ranks, shard

Precision = Literal["auto", "float32", "bfloat16"]

HEAD_CHUNK = 160
"""Positions whose logits exist at the same time, at 4 bytes · vocabulary each."""


(IDLE,) = micro_batches([((1,), (1,))], 1)
"""A micro-batch whose one token counts for nothing."""


class TokenScores(NamedTuple):
    """What a model says of each of N sampled tokens."""

    logprobs: Tensor
    """(N,), with gradient: of the token itself."""
    entropies: Tensor
    """(N,): of the distribution that the token was drawn from, in nats; with gradient on demand."""


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


class TokenScorer(nn.Module):
    """A causal language model as one module whose call is all that is computed with its weights.

    FSDP2 gathers weights when the module that they belong to is called. Body and head are called
    by this one, so they may have weights in common.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: MicroBatch, temperature: float, *, entropy_gradient: bool, thrifty: bool
    ) -> TokenScores:
        """Return the log-probabilities of a micro-batch's targets and the entropies there."""
        device = self.model.device
        body = _body(self.model)
        with _recomputing(body, thrifty):
            hidden = _hidden(body, batch.packed)
        hidden = hidden.index_select(0, batch.predictors.to(device))
        chunks = zip(
            torch.split(hidden, HEAD_CHUNK),
            torch.split(batch.targets.to(device), HEAD_CHUNK),
            strict=True,
        )
        parts = [
            checkpoint(self._score, *chunk, temperature, entropy_gradient, use_reentrant=False)
            for chunk in chunks
        ]
        return TokenScores(*map(torch.cat, zip(*parts, strict=True)))

    def _score(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logits: Tensor = _head(self.model)(hidden).float() / temperature
        every = logits.log_softmax(-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropies = -(every.exp() * every).sum(-1)
        return every.gather(1, targets[:, None]).squeeze(1), entropies


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
        token_budget: The most tokens of a micro-batch, shared prefixes counted once.
        gradient_checkpointing: Compute each layer's activations again in the backward pass.
        adapter: The LoRA adapter of the model to compute with; None for the model without any.
        ranks: Who computes together. With a mesh the model is sharded, once and for all.

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
        gradient_checkpointing: bool = False,
        adapter: str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0 to train, got {temperature}")
        self.model = model
        self.model.train(False)
        self.temperature = temperature
        self.token_budget = token_budget
        self.adapter = adapter
        self.ranks = ranks
        self._thrifty = gradient_checkpointing
        device = torch.device(ranks.mesh.device_type) if ranks.mesh else model.device
        self._dtype = autocast_dtype(precision, device)
        self.select()
        _check_parts(model)
        self.scorer = TokenScorer(model)
        if ranks.mesh:
            shard(self.scorer, ranks.mesh, self._dtype)

    def without_adapter(self) -> Likelihood:
        """Return the likelihood of the same model, in the same memory, without any adapter."""
        other = copy.copy(self)
        other.adapter = None
        return other

    @torch.no_grad()
    def logprobs(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """Return, per pair, the float32 log-probabilities (T,) of its sampled ids.

        The same pairs in the same order are packed the same way as in `Learner.update`.
        """
        self.select()
        results = [torch.zeros(len(sampled)) for _, sampled in pairs]
        batches, idle = self.share(pairs)
        with self.autocast():
            for batch in batches:
                for row, values in batch.split(self.of(batch).logprobs.cpu()):
                    results[row] = values.clone()
            for _ in range(idle):
                self.of(IDLE)
        return self.ranks.join(results, self.model.device)

    def share(self, pairs: Sequence[Pair]) -> tuple[list[MicroBatch], int]:
        """Return this rank's micro-batches, and how many more another rank has.

        Weights are gathered in every pass, by all ranks together. One that has no more to do makes
        a pass over `IDLE` for each micro-batch that another still has.
        """
        batches = micro_batches(pairs, self.token_budget, self.ranks.rank, self.ranks.size)
        count = torch.tensor(len(batches), device=self.model.device)
        return batches, int(self.ranks.max(count)) - len(batches)

    def select(self) -> None:
        """Make the model compute with the adapter; several likelihoods may share one model."""
        select(self.model, self.adapter)

    def of(self, batch: MicroBatch, entropy_gradient: bool = False) -> TokenScores:
        """Return the log-probabilities of a micro-batch's targets and the entropies there."""
        scores: TokenScores = self.scorer(
            batch, self.temperature, entropy_gradient=entropy_gradient, thrifty=self._thrifty
        )
        return scores

    def autocast(self) -> torch.autocast:
        """Return the context that every pass runs in; inside one, weights are cast once.

        Sharded weights are gathered in the dtype of the passes and need no other cast.
        """
        enabled = self._dtype != torch.float32 and self.ranks.mesh is None
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=enabled)


@contextmanager
def _recomputing(body: nn.Module, thrifty: bool) -> Iterator[None]:
    """Have every layer forget its activations until the backward pass needs them.

    Layers do so in training mode alone. Only they are put into it, not what they are made of, so
    there is no dropout.
    """
    recompute = partial(checkpoint, use_reentrant=False)
    layers = [m for m in body.modules() if thrifty and isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = recompute  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.training = layer.gradient_checkpointing = False


def _hidden(body: nn.Module, packed: PackedRow) -> Tensor:
    """Run the decoder on a packed row of L tokens; return (L, width).

    The mask is one that no layer reads: it keeps the model from building one of L × L.
    """
    device = next(body.parameters()).device
    hidden: Tensor = body(
        input_ids=packed.input_ids.to(device),
        position_ids=packed.position_ids.to(device),
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        packing=packed.packing.to(device),
        use_cache=False,
    )[0]
    return hidden[0]


def _body(model: PreTrainedModel) -> nn.Module:
    body: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return body


def _head(model: PreTrainedModel) -> nn.Module:
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


@torch.no_grad()
def _check_parts(model: PreTrainedModel) -> None:
    """Compare body and head, packed, with the whole on a few ids."""
    body, head = _body(model), _head(model)
    vocabulary = model.config.get_text_config().vocab_size
    ids = [token % vocabulary for token in range(1, MIN_SHARED + 9)]
    sequences = [ids, [*ids[: MIN_SHARED + 2], *reversed(ids)], ids[::-1]]
    whole = [_logits(model, sequence) for sequence in sequences]
    scale = 1e-3 * max(float(one.abs().max()) for one in whole)
    alone = head(body(input_ids=torch.tensor([ids], device=model.device), use_cache=False)[0])
    if (gap := float((alone[0].float() - whole[0]).abs().max())) > scale:
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output head (by up to {gap:.3g} "
            "on a probe), for instance by a soft cap or a scale, which training would miss; "
            "use an architecture without it"
        )
    if not _packed_gap(body, head, sequences, whole) <= scale:
        raise ModelError(
            f"{type(model).__name__} cannot compute packed sequences as it computes single ones: "
            "its layers carry more than attention from token to token, or its attention is not "
            "PyTorch's; use another architecture, or load it with attn_implementation='sdpa'"
        )


def _packed_gap(
    body: nn.Module, head: nn.Module, sequences: list[list[int]], whole: list[Tensor]
) -> float:
    """Return how far logits of a packed row are from single ones; infinite if there are none."""
    packed = pack(sequences)
    try:
        hidden = _hidden(body, packed)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return math.inf  # a body that does not take such a row
    return max(
        float((head(hidden[places.to(hidden.device)]).float() - one).abs().max())
        for places, one in zip(packed.places, whole, strict=True)
    )


def _logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    logits: Tensor = model(
        input_ids=torch.tensor([ids], device=model.device), use_cache=False
    ).logits[0]
    return logits.float()
