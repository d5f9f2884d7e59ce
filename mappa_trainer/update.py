"""One agent's share of an iteration: from its transitions to its optimiser steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mappa_trainer import advantages as estimators
from mappa_trainer import losses
from mappa_trainer.batching import Pair, mini_batches
from mappa_trainer.errors import TrainingError
from mappa_trainer.learner import Learner
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.recipe import Recipe
from mappa_trainer.seeds import derive_seed
from mappa_trainer.types import Episode, Sample, Transition, UpdateMetrics

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Batch:
    """An agent's transitions of one iteration, cut into mini-batches by episode."""

    mini_batches: list[list[Transition]]
    dropped: Counter[str]
    """Transitions that cannot be trained on, by reason; nothing is dropped silently."""

    @property
    def transitions(self) -> list[Transition]:
        """All transitions to train on, in the order of the mini-batches."""
        return [transition for batch in self.mini_batches for transition in batch]


def make_batch(episodes: Sequence[Episode], agent: str, count: int, seed: int) -> Batch:
    """Gather an agent's transitions and deal whole episodes out among `count` mini-batches."""
    dropped: Counter[str] = Counter()
    kept: list[list[Transition]] = []
    for episode in episodes:
        own = [t for t in episode.transitions if t.agent == agent]
        reasons = [_reason_to_drop(transition) for transition in own]
        dropped.update(reason for reason in reasons if reason)
        kept.append([t for t, reason in zip(own, reasons, strict=True) if not reason])
    return Batch(mini_batches(kept, count, seed), dropped)


def shuffle_rewards(batch: Batch, seed: int) -> Batch:
    """Deal the rewards out among the transitions at random: the control of an experiment."""
    rewards = [transition.reward for transition in batch.transitions]
    random.Random(seed).shuffle(rewards)
    dealt = iter(rewards)
    return replace(
        batch,
        mini_batches=[
            [replace(t, reward=next(dealt)) for t in mini] for mini in batch.mini_batches
        ],
    )


def update_agent(
    recipe: Recipe,
    learner: Learner,
    reference: Likelihood,
    episodes: Sequence[Episode],
    agent: str,
    iteration: int,
) -> Metrics:
    """Train one agent on the iteration's episodes and return its metrics.

    Raises:
        TrainingError: the engine's log-probabilities are not the learner's, or something that
            enters the loss is not finite.
    """
    seed = derive_seed(recipe.train.seed, "mini-batches", iteration, agent)
    batch = make_batch(episodes, agent, recipe.train.updates, seed)
    if recipe.algorithm.shuffle_rewards:
        batch = shuffle_rewards(batch, derive_seed(seed, "shuffle"))
    metrics: Metrics = {"actions": len(batch.transitions), "dropped": batch.dropped.total()}
    metrics |= {f"dropped_{reason}": count for reason, count in batch.dropped.items()}
    if not batch.transitions:
        return metrics
    old = [learner.logprobs(_pairs(mini)) for mini in batch.mini_batches]
    flat_old = [values for mini in old for values in mini]
    metrics |= logprob_gap(batch.transitions, flat_old)
    _check_gap(recipe, agent, metrics["logprob_gap"])
    ref = [values for mini in batch.mini_batches for values in reference.logprobs(_pairs(mini))]
    kls = [estimators.kl_k1(o, r) for o, r in zip(flat_old, ref, strict=True)]
    advantages = _advantages(recipe, batch.transitions, kls)
    metrics |= _batch_metrics(batch.transitions, kls)
    updates = _optimise(recipe, learner, batch, flat_old, advantages)
    learner.free_gradients()
    return metrics | _update_metrics(updates)


def logprob_gap(transitions: Sequence[Transition], old: Sequence[Tensor]) -> Metrics:
    """Compare the engine's log-probabilities with the learner's, token by token."""
    sampler = torch.cat([torch.tensor(t.generation.sampler_logprobs) for t in transitions])
    gap = (sampler - torch.cat(list(old))).abs()
    return {"logprob_gap": float(gap.mean()), "logprob_gap_max": float(gap.max())}


def _reason_to_drop(transition: Transition) -> str | None:
    if not transition.generation.token_ids:
        return transition.generation.finish_reason
    return "unscored" if transition.reward is None else None


def _pairs(transitions: Iterable[Transition]) -> list[Pair]:
    return [(t.generation.prompt_ids, t.generation.token_ids) for t in transitions]


def _check_gap(recipe: Recipe, agent: str, gap: float) -> None:
    limit = recipe.train.max_logprob_gap
    if not gap <= limit:
        raise TrainingError(
            f"{agent}: the engine's and the learner's log-probabilities of the same tokens differ "
            f"by {gap:.3g} on average, more than train.max_logprob_gap = {limit:g}; the engine "
            "does not have the learner's weights"
        )


def _advantages(
    recipe: Recipe, transitions: Sequence[Transition], kls: Sequence[Tensor]
) -> list[Tensor]:
    estimator = estimators.find(recipe.algorithm.advantage)
    scores = [float(t.reward) for t in transitions if t.reward is not None]
    return estimator(scores, kls, kl_coef=recipe.algorithm.kl_coef, gamma=recipe.algorithm.gamma)


def _optimise(
    recipe: Recipe,
    learner: Learner,
    batch: Batch,
    old: Sequence[Tensor],
    advantages: Sequence[Tensor],
) -> list[UpdateMetrics]:
    table = recipe.algorithm
    loss = partial(losses.find(table.loss), clip_low=table.clip_low, clip_high=table.clip_high)
    samples = iter(
        [
            Sample(t.generation.prompt_ids, t.generation.token_ids, o, a)
            for t, o, a in zip(batch.transitions, old, advantages, strict=True)
        ]
    )
    return [
        learner.update([next(samples) for _ in mini], loss) for mini in batch.mini_batches if mini
    ]


def _batch_metrics(transitions: Sequence[Transition], kls: Sequence[Tensor]) -> Metrics:
    rewards = torch.tensor([t.reward for t in transitions])
    cut = sum(t.generation.finish_reason == "length" for t in transitions)
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std(correction=0)),
        "kl": float(torch.cat(list(kls)).mean()),
        "cut_share": cut / len(transitions),
    }


def _update_metrics(updates: Sequence[UpdateMetrics]) -> Metrics:
    """Average over tokens, so that a small mini-batch does not weigh like a large one."""
    tokens = sum(update.tokens for update in updates)

    def mean(name: str) -> float:
        return sum(float(getattr(u, name)) * u.tokens for u in updates) / tokens

    return {
        "loss": mean("loss"),
        "ratio": mean("ratio_mean"),
        "clip_fraction": mean("clip_fraction"),
        "first_ratio_deviation": updates[0].ratio_max_deviation,
        "grad_norm": mean("grad_norm"),
        "updates": len(updates),
    }
