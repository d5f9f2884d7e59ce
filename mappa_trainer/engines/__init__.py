"""What generates: token ids in, sampled token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mappa_trainer.types import FinishReason, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["AsyncEngine", "Completion", "Engine", "SyncedEngine"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled for one prompt, e.g. `Completion((9, 2), (-0.1, -0.3), "stop")`."""

    token_ids: tuple[int, ...]
    """The end-of-turn id included where it was sampled."""
    logprobs: tuple[float, ...]
    """Of each sampled id, at the sampling temperature; at temperature 1 where that is 0."""
    finish_reason: FinishReason
    weight_version: int = 0
    """How many optimiser steps the weights that sampled it had taken."""


class Engine(Protocol):
    """Samples completions from one set of weights."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per prompt; row i is drawn from `seeds[i]` alone.

        A prompt that leaves no room for `sampling.max_new_tokens` is not cut: its completion is
        empty and its finish reason `prompt_too_long`.
        """
        ...


class SyncedEngine(Engine, Protocol):
    """An engine whose weights follow those of a model in training."""

    def sync(self, source: PreTrainedModel, version: int) -> None:
        """Take over the weights of `source`, which took `version` optimiser steps."""
        ...


class AsyncEngine(Engine, Protocol):
    """An engine that takes prompts as they come, and does many at a time."""

    async def complete(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> Completion:
        """Sample one completion; see `Engine.generate`."""
        ...
