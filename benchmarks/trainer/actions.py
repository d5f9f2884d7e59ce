"""Made-up actions of given lengths, and what plain PyTorch does with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import PreTrainedModel

from mappa_trainer.batching import Pair
from mappa_trainer.learner import Learner
from mappa_trainer.losses import ppo_clip
from mappa_trainer.objective import Objective
from mappa_trainer.types import Sample

PLAIN_LOSS = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2))
RATE = 1e-9
"""So small that all rounds have the same weights, up to rounding."""
UNBOUNDED = 1e9
"""A norm that no gradient has, so that gradients can be compared as they are."""


def ids(rng: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    """Draw token ids, none of which is a special one of the models here."""
    return tuple(rng.randrange(20, vocabulary) for _ in range(count))


def samples_of(learner: Learner, pairs: Sequence[Pair]) -> list[Sample]:
    """Give all actions the advantage 1: with a ratio of 1 the gradient is that of likelihood."""
    return [
        Sample(tuple(prompt), tuple(sampled), old, torch.ones(len(sampled)))
        for (prompt, sampled), old in zip(pairs, learner.logprobs(pairs), strict=True)
    ]


def share_weights(model: PreTrainedModel, owner: PreTrainedModel) -> None:
    """Make one model compute with the parameters of another, which saves memory.

    It makes sure that both have the same weights at any time, too.
    """
    parameters = dict(owner.named_parameters())
    for name, _ in list(model.named_parameters()):
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, parameters[name])
    model.tie_weights()


def gradients(model: PreTrainedModel) -> Tensor:
    """Return all gradients of a model as one vector, in the order of its parameters."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def distance(one: Tensor, other: Tensor) -> float:
    """Return the length of the difference of two vectors over that of the second."""
    return float((one - other).norm() / other.norm())


def adamw(model: PreTrainedModel) -> AdamW:
    """Return the optimiser of a `Learner` for a model."""
    return AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
