"""One whole update as GRPO takes it, ours against a plain loop and against TRL's trainer.

Whole means on every side: the policy's log-probabilities before the step, the reference's, and one
optimiser step on all actions, with PPO's clip, the k3 estimate of the KL in the loss and the token
mean. All sides share weights, prompts, actions and rewards, run in float32 and have the same number
of rows, or as many tokens, in a micro-batch. Ours is `update_learner`, so advantages and
metrics are in it, too. The others pad to the longest action, as they do where the batch is not
sorted. TRL's own generation, rewards and data loading are left out; prompts are of one length.

How much is won depends on how the lengths spread and on how much of a sequence is prompt: a group's
prompt is computed once here, and eight times by the others.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import side_by_side
import torch
from actions import RATE, UNBOUNDED, distance, gradients, ids
from pytest_benchmark.fixture import BenchmarkFixture
from side_by_side import Side, compare

pytest.importorskip("trl", reason="trl is not installed; install the extra examples")

from peers_of_update import AT_ONCE, CLIP, KL_COEF, PEERS, Padded, Peer, fill

from mappa_trainer.algorithms import objective_of
from mappa_trainer.batching import Pair
from mappa_trainer.cluster.worker import LearnerWorker
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model
from mappa_trainer.recipe import Recipe, parse_recipe
from mappa_trainer.types import Episode, Generation, Sample, Transition
from mappa_trainer.update import update_learner

GROUPS, GROUP = 1, 8
PROMPT = 48
MEDIAN, SIGMA, LIMIT = 28, 0.8, 128
"""Of the lengths of actions, which are log-normal."""


def draw_pairs(vocabulary: int) -> list[Pair]:
    """Draw prompts and actions, group by group."""
    rng = random.Random(3)
    pairs: list[Pair] = []
    for _ in range(GROUPS):
        prompt = ids(rng, PROMPT, vocabulary)
        lengths = [rng.lognormvariate(math.log(MEDIAN), SIGMA) for _ in range(GROUP)]
        pairs += [(prompt, ids(rng, min(LIMIT, math.ceil(n)), vocabulary)) for n in lengths]
    return pairs


def draw_rewards() -> list[float]:
    """Draw rewards from 0 to 1."""
    rng = random.Random(4)
    return [rng.random() for _ in range(GROUPS * GROUP)]


def group_advantages(rewards: list[float]) -> torch.Tensor:
    """Return the deviations from the group's mean over the group's deviation, (B,)."""
    groups = [rewards[first : first + GROUP] for first in range(0, len(rewards), GROUP)]
    return torch.tensor([(r - fmean(group)) / pstdev(group) for group in groups for r in group])


def recipe_of(folder: Path) -> Recipe:
    """Return GRPO as a recipe."""
    table = {
        "name": "grpo",
        "env": {"module": "none", "id": "none"},
        "model": {"base": str(folder), "precision": "float32"},
        "algorithm": {
            "advantage": "grpo",
            "clip_low": CLIP,
            "clip_high": CLIP,
            "kl_in": "loss",
            "kl_estimator": "k3",
            "kl_coef": KL_COEF,
        },
        "train": {"iterations": 1, "episodes": GROUPS * GROUP, "samples": GROUP},
    }
    return parse_recipe(table, "the benchmark")


def episodes_of(pairs: list[Pair], rewards: list[float], learner: Learner) -> list[Episode]:
    """Put every action into an episode of its own; a group is the episodes of one task."""
    episodes = []
    for index, ((prompt, sampled), reward, known) in enumerate(
        zip(pairs, rewards, learner.logprobs(pairs), strict=True)
    ):
        said = Generation(tuple(prompt), tuple(sampled), tuple(known.tolist()), "", "stop")
        action = Transition("agent", 0, (), said, reward, None, None)
        episodes.append(Episode(index, index // GROUP, {}, (action,), None, {}, {}, {}))
    return episodes


def peers_update(peer: Peer, rewards: list[float]) -> None:
    """Update as a peer does."""
    peer.step(peer.policy(), peer.reference(), group_advantages(rewards))


def moved(logprobs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Add noise, as if other weights had computed them."""
    noise = torch.Generator().manual_seed(seed)
    return [values + 0.3 * torch.randn(len(values), generator=noise) for values in logprobs]


def check_equal(
    peer: Peer, learner: Learner, reference: Likelihood, pairs: list[Pair], recipe: Recipe
) -> None:
    """Compare log-probabilities, and gradients where clip and KL matter."""
    found, held = learner.logprobs(pairs), reference.logprobs(pairs)
    old, ref = moved(found, 0), moved(found, 1)
    advantages = group_advantages(draw_rewards())
    mask = Padded.of(pairs).mask
    for theirs, ours in ((peer.policy(), found), (peer.reference(), held)):
        torch.testing.assert_close(theirs * mask, fill(ours), rtol=1e-4, atol=1e-3)
    samples = [
        Sample(tuple(prompt), tuple(sampled), o, torch.full((len(sampled),), float(a)), r)
        for (prompt, sampled), o, a, r in zip(pairs, old, advantages, ref, strict=True)
    ]
    metrics = learner.update(samples, objective_of(recipe))
    assert metrics.clip_fraction > 0.05
    ours = gradients(learner.model)
    peer.step(fill(old), fill(ref), advantages)
    assert distance(gradients(learner.model), ours) < 1e-3


@pytest.mark.parametrize("name", PEERS)
def test_update_against_peers(benchmark: BenchmarkFixture, folder: Path, name: str) -> None:
    """Ours takes the same step as a peer, and how often each takes it."""
    model, other = load_model(folder), load_model(folder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.01)  # so that it is not the policy
    pairs, rewards, recipe = draw_pairs(model.config.vocab_size), draw_rewards(), recipe_of(folder)
    padded = Padded.of(pairs)
    rows = padded.actions.shape[1] + PROMPT
    learner = Learner(
        model,
        learning_rate=LearningRate(RATE),
        max_grad_norm=UNBOUNDED,
        precision="float32",
        token_budget=AT_ONCE * rows,
    )
    reference = Likelihood(other, precision="float32", token_budget=AT_ONCE * rows)
    peer = PEERS[name](folder, model, other, padded)
    check_equal(peer, learner, reference, pairs, recipe)
    episodes = episodes_of(pairs, rewards, learner)

    worker = LearnerWorker(learner, reference)

    def ours() -> None:
        metrics = update_learner(recipe, worker, episodes, ["agent"], 0)
        assert metrics["agent/trained_tokens"] == tokens

    tokens = int(padded.mask.sum())
    compare(
        benchmark,
        f"an update on {len(pairs)} actions, {name}",
        "tokens",
        {
            name: Side(lambda: peers_update(peer, rewards), tokens),
            "ours": Side(ours, tokens),
        },
        rounds=3,
    )
    if benchmark.enabled:
        padding = 1 - (tokens + PROMPT * len(pairs)) / (rows * len(pairs))
        side_by_side.NOTES.append(
            f"{name}: {tokens} tokens of actions, {PROMPT} of a prompt; padded to {rows}, "
            f"of which {padding:.0%} is padding"
        )
