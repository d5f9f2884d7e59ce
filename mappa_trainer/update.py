"""One learner's share of an iteration: from what its agents did to its optimiser steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor

from mappa_trainer import kl as divergence
from mappa_trainer.advantages import Action, scope_of
from mappa_trainer.algorithms import advantage_of, objective_of
from mappa_trainer.batching import Pair
from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.errors import TrainingError
from mappa_trainer.phases import Phases
from mappa_trainer.recipe import Recipe
from mappa_trainer.returns import returns_to_go
from mappa_trainer.seeds import derive_seed
from mappa_trainer.selection import Batch, Selected, make_batch, shuffle_rewards
from mappa_trainer.types import Episode, Sample, Transition, UpdateMetrics

Metrics = dict[str, float]


def update_learner(
    recipe: Recipe,
    worker: LearnerWorker,
    episodes: Sequence[Episode],
    agents: Sequence[str],
    iteration: int,
    phases: Phases | None = None,
) -> Metrics:
    """Train one set of weights on an iteration's episodes.

    Args:
        recipe: Of the run.
        worker: The weights, and those that the KL penalty holds to.
        episodes: All episodes of the iteration.
        agents: Who plays these weights: one agent, or several that share them. Advantages are
            computed for each of them alone; their samples go into the same mini-batches.
        iteration: Counts from 0.
        phases: Where the time of the `logprobs` and of the `update` is counted.

    Returns:
        Metrics named `<agent>/<name>`; those of the optimiser steps are equal for all `agents`.

    Raises:
        TrainingError: the engine's log-probabilities are not the learner's, actions cannot be
            compared, or something that enters the loss is not finite.
    """
    phases = phases or Phases()
    batch = _batch(recipe, episodes, agents, iteration)
    metrics = {agent: _counts(batch, agent) for agent in agents}
    if not batch.selected:
        for _ in batch.mini_batches:
            worker.update([], objective_of(recipe))
        return _named(metrics)
    with phases.of("logprobs"):
        judged = _judge(batch, worker)
    advantages: dict[int, Tensor] = {}
    for agent in agents:
        rows = [i for i, one in enumerate(judged) if one.transition.agent == agent]
        if rows:
            own = [judged[i] for i in rows]
            metrics[agent] |= _gap_metrics(own)
            _check_gap(recipe, agent, metrics[agent]["logprob_gap"])
            values, found = _advantages(recipe, agent, own)
            advantages |= zip(rows, values, strict=True)
            metrics[agent] |= found
    samples = [_sample(one, advantages[i]) for i, one in enumerate(judged)]
    with phases.of("update"):
        taken = _update_metrics(_optimise(recipe, worker, batch, samples))
        worker.rest()
    return _named({agent: own | taken for agent, own in metrics.items()})


def frozen_metrics(episodes: Sequence[Episode], agents: Sequence[str]) -> Metrics:
    """Count the actions of agents that are not trained."""
    counts = Counter(t.agent for episode in episodes for t in episode.transitions)
    return _named(
        {
            agent: {"actions": 0, "dropped": counts[agent], "dropped_frozen": counts[agent]}
            for agent in agents
        }
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A selected action of T tokens with what the models say of it."""

    selected: Selected
    old: Tensor
    """(T,): the learner's log-probabilities before the first update."""
    ref: Tensor
    """(T,): the reference's."""

    @property
    def transition(self) -> Transition:
        return self.selected.transition


def _judge(batch: Batch, worker: LearnerWorker) -> list[_Judged]:
    """Pass each mini-batch by itself, so that it is packed as in its update."""
    return [
        _Judged(*parts)
        for mini in batch.mini_batches
        for parts in zip(
            mini,
            worker.logprobs(_pairs(mini)),
            worker.reference_logprobs(_pairs(mini)),
            strict=True,
        )
    ]


def _gap_metrics(judged: Sequence[_Judged]) -> Metrics:
    """Compare the engine's log-probabilities with the learner's, token by token."""
    sampler = [torch.tensor(one.transition.sampled.sampler_logprobs) for one in judged]
    gap = (torch.cat(sampler) - torch.cat([one.old for one in judged])).abs()
    return {"logprob_gap": float(gap.mean()), "logprob_gap_max": float(gap.max())}


def _batch(
    recipe: Recipe, episodes: Sequence[Episode], agents: Sequence[str], iteration: int
) -> Batch:
    seed = derive_seed(recipe.train.seed, "mini-batches", iteration, *agents)
    batch = make_batch(
        episodes,
        {agent: scope_of(advantage_of(recipe, agent)) for agent in agents},
        mask_truncated=recipe.algorithm.mask_truncated,
        count=recipe.train.updates,
        seed=seed,
    )
    if recipe.algorithm.shuffle_rewards:
        return shuffle_rewards(batch, derive_seed(seed, "shuffle"))
    return batch


def _counts(batch: Batch, agent: str) -> Metrics:
    dropped = batch.dropped[agent]
    actions = sum(s.transition.agent == agent for s in batch.selected)
    return {
        "actions": actions,
        "dropped": dropped.total(),
        **{f"dropped_{reason}": count for reason, count in dropped.items()},
    }


def _pairs(selected: Iterable[Selected]) -> list[Pair]:
    generations = [s.transition.sampled for s in selected]
    return [(generation.prompt_ids, generation.token_ids) for generation in generations]


def _check_gap(recipe: Recipe, agent: str, gap: float) -> None:
    limit = recipe.train.max_logprob_gap
    if not gap <= limit:
        raise TrainingError(
            f"{agent}: the engine's and the learner's log-probabilities of the same tokens differ "
            f"by {gap:.3g} on average, more than train.max_logprob_gap = {limit:g}; the engine "
            "does not have the learner's weights"
        )


def _advantages(
    recipe: Recipe, agent: str, judged: Sequence[_Judged]
) -> tuple[list[Tensor], Metrics]:
    """Return the advantages of one agent's actions, and what its rewards were."""
    table = recipe.algorithm
    estimate = divergence.ESTIMATORS[table.kl_estimator]
    kl_coef = table.kl_coef if table.kl_in == "reward" else 0.0
    estimator = advantage_of(recipe, agent)
    by_task = scope_of(estimator) == "task"
    actions = [
        Action(
            float(one.transition.reward),
            estimate(one.old, one.ref),
            one.selected.group,
            one.selected.joint_return if by_task else None,
        )
        for one in judged
        if one.transition.reward is not None
    ]
    try:
        own = list(estimator(actions, kl_coef=kl_coef, gamma=table.gamma))
        _check_shapes(agent, actions, own)
    except TrainingError:
        raise
    except Exception as error:  # whatever a function of the user's raises
        raise TrainingError(
            f"{agent}: its advantage estimator failed: {type(error).__name__}: {error}; it takes "
            "(actions, *, kl_coef, gamma) and returns a list of one tensor for each action"
        ) from error
    return own, _reward_metrics(judged) | _return_metrics(actions, kl_coef, table.gamma)


def _check_shapes(agent: str, actions: Sequence[Action], advantages: Sequence[Tensor]) -> None:
    if len(advantages) != len(actions):
        raise TrainingError(
            f"{agent}: its advantage estimator returned {len(advantages)} tensors for "
            f"{len(actions)} actions; it must return one for each"
        )
    for index, (action, found) in enumerate(zip(actions, advantages, strict=True)):
        if not isinstance(found, Tensor):
            raise TrainingError(
                f"{agent}: its advantage estimator returned {found!r:.80} for action {index}; it "
                "must return a tensor with one value for each token"
            )
        if found.shape != action.kl.shape:
            raise TrainingError(
                f"{agent}: its advantage estimator returned a tensor of shape {tuple(found.shape)} "
                f"for action {index}, which has {len(action.kl)} tokens; it must return one value "
                "for each token"
            )


def _reward_metrics(judged: Sequence[_Judged]) -> Metrics:
    rewards = [float(r) for one in judged if (r := one.transition.reward) is not None]
    cut = sum(one.transition.generation.finish_reason == "length" for one in judged)
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),  # exactly 0 for equal ones, which tensors do not give
        "kl": float(torch.cat([divergence.k1(one.old, one.ref) for one in judged]).mean()),
        "cut_share": cut / len(judged),
    }


def _return_metrics(actions: Sequence[Action], kl_coef: float, gamma: float) -> Metrics:
    """Tell how returns spread over tokens, and which share of their size the KL has.

    Where an estimator gets joint returns, it is these that an action earns.
    """
    joint = [action.joint_return for action in actions]
    scores = [a.score if j is None else j for a, j in zip(actions, joint, strict=True)]
    kls = [action.kl for action in actions]
    nothing = [0.0] * len(actions)
    of_score, of_kl = (
        torch.cat(returns_to_go(s, kls, kl_coef=c, gamma=gamma))
        for s, c in ((scores, 0.0), (nothing, kl_coef))
    )
    sizes = [float(part.abs().mean()) for part in (of_kl, of_score)]
    return {
        "return_std": float((of_score + of_kl).std(correction=0)),
        "kl_share": sizes[0] / sum(sizes) if sum(sizes) else 0.0,
    }


def _sample(judged: _Judged, advantages: Tensor) -> Sample:
    generation = judged.transition.sampled
    return Sample(
        generation.prompt_ids,
        generation.token_ids,
        judged.old,
        advantages,
        ref_logprobs=judged.ref,
        sampler_logprobs=torch.tensor(generation.sampler_logprobs),
    )


def _optimise(
    recipe: Recipe, worker: LearnerWorker, batch: Batch, samples: Sequence[Sample]
) -> list[UpdateMetrics]:
    objective, rest = objective_of(recipe), iter(samples)
    return [worker.update([next(rest) for _ in mini], objective) for mini in batch.mini_batches]


def _update_metrics(updates: Sequence[UpdateMetrics]) -> Metrics:
    """Average over tokens, so that a small mini-batch does not weigh like a large one."""
    taken = [update for update in updates if update.tokens]
    tokens = sum(update.tokens for update in taken)

    def mean(name: str) -> float:
        return sum(float(getattr(u, name)) * u.tokens for u in taken) / tokens

    return {
        "loss": mean("loss"),
        "ratio": mean("ratio_mean"),
        "clip_fraction": mean("clip_fraction"),
        "first_ratio_deviation": taken[0].ratio_max_deviation,
        "entropy": mean("entropy"),
        "grad_norm": mean("grad_norm"),
        "updates": len(taken),
        "skipped_updates": len(updates) - len(taken),
        "trained_tokens": tokens,
    }


def _named(metrics: dict[str, Metrics]) -> Metrics:
    return {f"{agent}/{name}": v for agent, own in metrics.items() for name, v in own.items()}
