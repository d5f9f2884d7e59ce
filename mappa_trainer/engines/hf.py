"""Generation in this process, with a Hugging Face model and no server.

The decode loop is written out because each row draws from its own seed: a row's tokens are the
same whatever else is in the batch, up to the rounding that the batch causes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import cast

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.adapters import copy_adapter, select
from mappa_trainer.engines import AsyncEngine, Completion, Engine
from mappa_trainer.errors import ModelError, TrainingError
from mappa_trainer.policy import Conversation
from mappa_trainer.types import Generation, Sampling

MAX_BATCH = 64
"""Rows that are decoded together, unless an engine is told otherwise."""


class LMPolicy:
    """A `Policy` that is a language model: an engine and the tokenizer of its weights."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self.engine = engine
        self.tokenizer = tokenizer

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Generation]:
        """Sample one action per conversation; see `Policy.act`."""
        prompts = [self._prompt_ids(conversation) for conversation in conversations]
        completions = self.engine.generate(prompts, seeds, sampling)
        return list(map(self._generation, prompts, completions))

    def _generation(self, prompt: tuple[int, ...], completion: Completion) -> Generation:
        return Generation(
            prompt_ids=prompt,
            token_ids=completion.token_ids,
            sampler_logprobs=completion.logprobs,
            text=self._text(completion.token_ids),
            finish_reason=completion.finish_reason,
            weight_version=completion.weight_version,
        )

    def _prompt_ids(self, conversation: Conversation) -> tuple[int, ...]:
        messages = [dict(message) for message in conversation]
        try:
            ids = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise TrainingError(
                f"the model's chat template refuses a conversation of {roles}: {error}; use a "
                "model whose template takes these roles, or change the template in its folder"
            ) from error
        return tuple(cast("list[int]", ids))

    def _text(self, token_ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


class AsyncLMPolicy(LMPolicy):
    """The same with an engine that takes prompts as they come; an `AsyncPolicy`."""

    def __init__(self, engine: AsyncEngine, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(engine, tokenizer)
        self._async_engine = engine

    async def act_alone(
        self, conversation: Conversation, seed: int, sampling: Sampling
    ) -> Generation:
        """Sample one action; see `AsyncPolicy.act_alone`."""
        prompt = self._prompt_ids(conversation)
        return self._generation(prompt, await self._async_engine.complete(prompt, seed, sampling))


class HFEngine:
    """An `Engine` over a copy of a model's weights.

    Args:
        model: The model to generate with.
        eos_ids: Ids that end a completion; the one sampled is kept as its last token.
        pad_id: Fills prompts on the left; any id, it is masked out.
        dtype: The copy's dtype; bfloat16 halves the memory traffic that decoding is bound by.
        share: Use `model` itself, without a copy; it must have `dtype` already.
        max_batch: The most rows decoded together.
        adapter: The LoRA adapter of the model to generate with; None for the model without any.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_ids: Collection[int],
        pad_id: int,
        dtype: torch.dtype = torch.float32,
        share: bool = False,
        max_batch: int = MAX_BATCH,
        adapter: str | None = None,
    ) -> None:
        self.model = model if share and model.dtype == dtype else copy_as(model, dtype)
        self.adapter = adapter
        self.max_batch = max_batch
        self.version = 0
        """Of the weights; see `Completion.weight_version`."""
        self._eos_ids = torch.tensor(sorted(eos_ids), device=model.device)
        self._pad_id = pad_id
        self._context = _context(model)

    @torch.no_grad()
    def sync(self, source: PreTrainedModel, version: int) -> None:
        """Take over the weights of `source`, cast to this engine's dtype.

        With an adapter, only its weights: the base never changes.
        """
        self.version = version
        if source is self.model:
            return
        if self.adapter:
            copy_adapter(source, self.model, self.adapter)
            return
        weights = dict(source.named_parameters())
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per prompt; see `Engine.generate`."""
        if len(prompts) != len(seeds):
            raise ValueError(
                f"generate got {len(prompts)} prompts but {len(seeds)} seeds; give one per prompt"
            )
        room = self._context - sampling.max_new_tokens
        completions = [Completion((), (), "prompt_too_long", self.version)] * len(prompts)
        fitting = [row for row, prompt in enumerate(prompts) if len(prompt) <= room]
        fitting.sort(key=lambda row: len(prompts[row]))
        for start in range(0, len(fitting), self.max_batch):
            rows = fitting[start : start + self.max_batch]
            batch = self._decode([prompts[i] for i in rows], [seeds[i] for i in rows], sampling)
            for row, completion in zip(rows, batch, strict=True):
                completions[row] = completion
        return completions

    @torch.no_grad()
    def _decode(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        select(self.model, self.adapter)
        device = self.model.device
        draws = _uniforms(seeds, sampling.max_new_tokens).to(device)
        ids, mask = (tensor.to(device) for tensor in _pad_left(prompts, self._pad_id))
        live = torch.arange(len(prompts), device=device)
        tokens: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        stopped: set[int] = set()
        cache = DynamicCache(config=self.model.config)
        for step in range(sampling.max_new_tokens):
            logits = self._next_logits(ids, mask, cache)
            sampled, sampled_logprobs = sample(logits, draws[live, step], sampling.temperature)
            for row, token, logprob in zip(
                live.tolist(), sampled.tolist(), sampled_logprobs.tolist(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(logprob)
            going = ~torch.isin(sampled, self._eos_ids)
            if not going.all():
                stopped.update(live[~going].tolist())
                live, mask, sampled = live[going], mask[going], sampled[going]
                if not len(live):
                    break
                cache.batch_select_indices(going.nonzero().squeeze(1))
            ids = sampled[:, None]
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
        return [
            Completion(
                tuple(ids), tuple(values), "stop" if row in stopped else "length", self.version
            )
            for row, (ids, values) in enumerate(zip(tokens, logprobs, strict=True))
        ]

    def _next_logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Feed `ids` (B, L) and return the logits (B, V) of the token that follows."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]


def _context(model: PreTrainedModel) -> int:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        raise ModelError(
            f"{type(model).__name__} does not say how long its context is "
            "(max_position_embeddings), as recurrent models do not; use another architecture"
        )
    return int(context)


def sample(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: (B, V), any float dtype; the softmax is taken in float32.
        draws: (B,) float64, uniform on [0, 1).
        temperature: Divides the logits; 0 takes the most likely token.

    Returns:
        The ids (B,) and their log-probabilities (B,) at `temperature`, at 1 where that is 0.

    Raises:
        TrainingError: A row has no finite maximum.
    """
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if not (logprobs.amax(-1).isfinite()).all():
        raise TrainingError(
            "the model's logits are not finite, so nothing can be sampled; check its weights, or "
            "generate in float32 if they overflow in the engine's dtype"
        )
    if temperature == 0:
        ids = logprobs.argmax(-1, keepdim=True)
    else:
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        targets = draws[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, targets, right=True)
    return ids.squeeze(1), logprobs.gather(1, ids).squeeze(1)


def _uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Draw `count` uniforms per seed: (B, count) float64.

    Not from `torch.Generator`, which reads only the lower 32 bits of a seed.
    """
    return torch.from_numpy(np.stack([np.random.default_rng(seed).random(count) for seed in seeds]))


def _pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids and mask, both (B, L) int64, with prompts flush to the right."""
    width = max(len(prompt) for prompt in prompts)
    pads = [width - len(prompt) for prompt in prompts]
    ids = [[pad_id] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    return torch.tensor(ids), torch.tensor(mask)


def copy_as(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Copy a model and cast its parameters; rotary tables and other buffers keep their dtype."""
    clone = copy.deepcopy(model)
    clone.train(False)
    clone.requires_grad_(False)
    for parameter in clone.parameters():
        parameter.data = parameter.data.to(dtype)
    return clone
