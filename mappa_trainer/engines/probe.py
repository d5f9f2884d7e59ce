"""Whether an engine has the weights that it should: both sides score what the engine samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mappa_trainer.batching import Pair
from mappa_trainer.engines import Engine
from mappa_trainer.errors import TrainingError
from mappa_trainer.types import Sampling

PROMPT_TOKENS = 300
"""Longer than two blocks of any prefix cache, so that one that is stale is found."""
NEW_TOKENS = 16
SEEDS = (1, 2, 3, 4)


def probe_gap(
    engine: Engine,
    logprobs: Callable[[Sequence[Pair]], list[Tensor]],
    vocabulary: int,
    temperature: float,
) -> float:
    """Return the mean difference between an engine's log-probabilities and a learner's.

    The prompt is random ids: after them a model is sure of nothing, so every weight has a say. It
    is the same each time, so that a prefix cached with other weights would be used if it could.

    Args:
        engine: What generates.
        logprobs: Of the learner; see `Learner.logprobs`.
        vocabulary: The ids are below this.
        temperature: That of `logprobs`.

    Raises:
        TrainingError: the context has no room for the probe.
    """
    prompt = tuple(np.random.default_rng(0).integers(vocabulary, size=PROMPT_TOKENS).tolist())
    sampling = Sampling(temperature, NEW_TOKENS)
    found = engine.generate([prompt] * len(SEEDS), SEEDS, sampling)
    if any(completion.finish_reason == "prompt_too_long" for completion in found):
        raise TrainingError(
            f"the engine has no room for the probe of {PROMPT_TOKENS + NEW_TOKENS} tokens; give "
            "its server a longer --max-model-len"
        )
    own = torch.cat(logprobs([(prompt, completion.token_ids) for completion in found]))
    theirs = torch.tensor([value for completion in found for value in completion.logprobs])
    return float((own.cpu() - theirs).abs().mean())


def check_gap(name: str, version: int, gap: float, limit: float) -> None:
    """Stop a run whose engine has other weights than its learner.

    Raises:
        TrainingError: the gap is above the limit, or no number.
    """
    if not gap <= limit:
        raise TrainingError(
            f"{name}: the engine was given the weights after {version} optimiser steps, and its "
            f"log-probabilities of a probe differ from the learner's by {gap:.3g} on average, more "
            f"than engine.max_sync_gap = {limit:g}: it has other weights, or computes with less "
            "precision. Nothing was trained on its samples; end the server, then go on with "
            "--resume"
        )
